"""Images in task files: each form of a line, what is stored, what is refused, and that an import may be repeated."""

import asyncio
import base64
import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.documents.content import Block
from shared.documents.images import MAX_INLINE_BYTES
from shared.images.decode import decode
from shared.store import Store
from shared.tasks import task_images
from shared.tasks.checks import Samplers, TaskCheck
from shared.tasks.files import ImportResult, ImportTarget, check_playable, import_task_file
from shared.tasks.line_errors import TaskFileError
from shared.tasks.lines import checked_lines
from shared.tasks.mix import TasksConfig, import_mix
from tests.shared.image_files import deflated, painted, png, saved, valid
from tests.shared.lines_of_tasks import write

RED = saved(painted("RGB", 30, 20), "PNG")
BLUE = valid("JPEG")


def text(content: str) -> Block:
    return {"type": "text", "text": content}


def reference(data: bytes) -> Block:
    height, width = decode(data, "image").rgb_HW3.shape[:2]
    sizes = {"width": width, "height": height, "num_bytes": len(data)}
    return {"type": "image", "sha256": hashlib.sha256(data).hexdigest(), **sizes}


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "images/red.png").write_bytes(RED)
    (tmp_path / "blue.jpg").write_bytes(BLUE)
    return tmp_path


async def stored_payload(store: Store, tid: str) -> Any:
    task = await store.tasks.get(f"main:train:0:{tid}")
    assert task is not None
    return task.payload


FORMS: dict[str, tuple[dict[str, Any], str, list[Block]]] = {
    "blocks": (
        {"query": [text("What is "), {"type": "image", "path": "images/red.png"}, text(" beside "),
                   {"type": "image", "base64": base64.b64encode(BLUE).decode()}, text("?")]},
        "What is  beside ?",
        [text("What is "), reference(RED), text(" beside "), reference(BLUE), text("?")],
    ),
    "OpenAI": (
        {"query": [text("What?"), {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}}]},
        "What?",
        [text("What?"), reference(RED)],
    ),
    "transformers": (
        {"query": [{"type": "image", "image": "images/red.png"}, text("What?")]},
        "What?",
        [reference(RED), text("What?")],
    ),
    "verl": (
        {"query": "<image>Is <image> it?\n", "images": [{"path": "blue.jpg"}, "images/red.png"]},
        "Is  it?\n",
        [reference(BLUE), text("Is "), reference(RED), text(" it?\n")],
    ),
    "TRL, a text": (
        {"query": "What?", "images": ["images/red.png", data_url(BLUE)]},
        "What?",
        [reference(RED), reference(BLUE), text("What?")],
    ),
    "TRL, blocks": (
        {"query": [text("What is "), {"type": "image", "text": None}, {"type": "text", "text": "?"}],
         "images": [{"bytes": None, "path": "images/red.png"}]},
        "What is ?",
        [text("What is "), reference(RED), text("?")],
    ),
    "one image": ({"query": "What?", "image": "blue.jpg"}, "What?", [reference(BLUE), text("What?")]),
    "an image alone": ({"query": "", "image": "blue.jpg"}, "", [reference(BLUE)]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
async def test_each_form_of_a_question_with_images_is_stored_as_texts_and_references(
    store: Store, folder: Path, form: str
) -> None:
    fields, query, blocks = FORMS[form]
    path = write(folder / "t.jsonl", [{"id": "a", "answer": "4", **fields}])
    assert await import_task_file(store, path, ImportTarget()) == ImportResult(1, 0)
    payload = await stored_payload(store, "a")
    assert (payload.query, payload.query_blocks, payload.answer) == (query, blocks, "4")
    for block in blocks:
        if block["type"] == "image":
            assert hashlib.sha256(await store.images.read(block["sha256"])).hexdigest() == block["sha256"]
    assert await import_task_file(store, path, ImportTarget()) == ImportResult(0, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "Is <image> a tag?"},
        {"query": "Is <image> a tag?", "images": None},
        {"query": "Is <image> a tag?", "images": []},
        {"query": [text("Is <image> "), text("a tag?")]},
    ],
)
async def test_a_question_without_images_is_the_text_that_it_always_was(
    store: Store, folder: Path, fields: dict[str, Any]
) -> None:
    await import_task_file(store, write(folder / "t.jsonl", [{"id": "a", **fields}]), ImportTarget())
    document = await store.database["tasks"].find_one({})
    assert document is not None
    assert document["payload"]["query"] == "Is <image> a tag?"
    assert "query_blocks" not in document["payload"]
    assert not {"images", "image_chunks"} & set(await store.database.list_collection_names())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "too few places": (
        {"query": "<image> and text", "images": ["blue.jpg", "blue.jpg"]},
        '"query" has "<image>" 1 times, for 2 images; expected it once for each, or never',
    ),
    "an empty block too many": (
        {"query": [{"type": "image"}, {"type": "image"}, text("?")], "images": ["blue.jpg"]},
        '"query" has 2 image blocks without an image of their own, for 1 of "images"',
    ),
    "an image too many": (
        {"query": [{"type": "image", "path": "blue.jpg"}, text("?")], "images": ["blue.jpg"]},
        '"query" has 0 image blocks without an image of their own, for 1 of "images"',
    ),
    "a video": ({"query": [{"type": "video", "video": "a.mp4"}]}, "\"query\", block 1 has \"type\" 'video'"),
    "a number": ({"query": [7]}, '"query", block 1 is a number; expected an object with "type"'),
    "no text": ({"query": [{"type": "text"}]}, '"query", block 1 has no "text"'),
    "an image of numbers": ({"query": "?", "images": [[1, 2]]}, '"images", image 1 is a list; expected a path'),
    "both names": ({"query": "?", "image": "blue.jpg", "images": []}, '"image" and "images" mean the same'),
    "no blocks": ({"query": []}, '"query" is empty; expected the question'),
    "no such file": ({"query": "?", "image": "gone.png"}, "\"images\", image 1: 'gone.png' in "),
    "a path that leads out": ({"query": "?", "image": "../blue.jpg"}, "which leads out of"),
    "an absolute path": ({"query": "?", "image": "/etc/passwd"}, '"images", image 1: "path" is'),
    "no image": ({"query": "?", "image": "t.jsonl"}, '"images", image 1: an unknown type'),
    "random bytes": ({"query": "?", "image": "random.png"}, '"images", image 1: an unknown type'),
    "cut off": ({"query": "?", "image": "cut.png"}, '"images", image 1: PNG that'),
    "a bomb": ({"query": "?", "image": "bomb.png"}, '"images", image 1: PNG of 50000 x 50000 pixels; expected 16,000,000'),
    "no base64": ({"query": [{"type": "image", "base64": "§"}]}, '"query", block 1: no base64 that can be decoded'),
    "a host": ({"query": "?", "image": "http://x.test/a.png"}, "an image of host 'x.test'; `image_hosts` allows none"),
    "too many": ({"query": "?", "images": ["blue.jpg"] * 65}, '"query": 65 images; expected 64 at most'),
    "a list as the answer": ({"query": "?", "image": "blue.jpg", "answer": [text("4")]}, '"answer" is'),
    "blocks as the system prompt": ({"query": "?", "system": [text("4")]}, '"system" is'),
    "a reference of its own": ({"query": "?", "query_blocks": [reference(BLUE)]}, 'unknown key "query_blocks"'),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
async def test_a_wrong_image_is_named_by_line_and_field_and_nothing_of_its_file_is_stored(
    store: Store, folder: Path, what: str
) -> None:
    fields, expected = WRONG[what]
    (folder / "random.png").write_bytes(os.urandom(4000))
    (folder / "cut.png").write_bytes(RED[: len(RED) // 2])
    (folder / "bomb.png").write_bytes(png(50_000, 50_000, packed=deflated(4)))
    good = {"id": "good", "query": "?", "image": "images/red.png"}
    path = write(folder / "t.jsonl", [good, {"id": "bad", **fields}])
    with pytest.raises(TaskFileError) as caught:
        await import_task_file(store, path, ImportTarget())
    assert str(caught.value).startswith(f"{path}:2: ")
    assert expected in str(caught.value)
    assert await store.tasks.count_by_status() == {}
    assert "images" not in await store.database.list_collection_names()


async def test_nothing_is_stored_where_an_image_of_a_later_batch_is_wrong(store: Store, folder: Path) -> None:
    lines = [{"id": str(n), "query": "?", "image": "gone.png" if n == 149 else "blue.jpg"} for n in range(150)]
    with pytest.raises(TaskFileError, match=r"t\.jsonl:150: "):
        await import_task_file(store, write(folder / "t.jsonl", lines), ImportTarget())
    assert await store.tasks.count_by_status() == {}
    assert "images" not in await store.database.list_collection_names()


async def test_one_error_lists_the_errors_of_several_lines(store: Store, folder: Path) -> None:
    lines = [{"id": f"t{k}", "query": "?", "image": "gone.png" if k % 2 else "blue.jpg"} for k in range(6)]
    with pytest.raises(TaskFileError) as caught:
        await import_task_file(store, write(folder / "t.jsonl", lines), ImportTarget())
    assert [error.number for error in caught.value.errors] == [2, 4, 6]


async def test_a_stored_question_with_another_image_is_a_conflict(store: Store, folder: Path) -> None:
    path = write(folder / "t.jsonl", [{"id": "a", "query": "?", "image": "blue.jpg"}])
    await import_task_file(store, path, ImportTarget())
    for other in ({"image": "images/red.png"}, {}):
        write(path, [{"id": "a", "query": "?", **other}])
        with pytest.raises(TaskFileError, match='task main:train:0:a is stored with another "query_blocks"'):
            await import_task_file(store, path, ImportTarget())
    assert (await stored_payload(store, "a")).query_blocks == [reference(BLUE), text("?")]


async def test_a_mixture_and_several_epochs_store_each_image_once(store: Store, folder: Path) -> None:
    write(folder / "a.jsonl", [{"id": "x", "query": "?", "image": "blue.jpg"}, {"id": "y", "query": "text"}])
    write(folder / "images/b.jsonl", [{"id": "x", "query": "?", "image": "red.png"}])
    sources = [{"name": "a", "file": folder / "a.jsonl"}, {"name": "b", "file": folder / "images/b.jsonl"}]
    config = TasksConfig(sources=sources, epochs=3)
    for inserted in (9, 0):
        result = await import_mix(store, config, policy="main", num_generations=2)
        assert result.inserted == inserted
    assert await store.database["images"].count_documents({}) == 2
    tasks = {task["_id"]: task["payload"] async for task in store.database["tasks"].find()}
    assert tasks["main:train:2:b/x"]["query_blocks"] == [reference(RED), text("?")]
    assert tasks["main:train:1:a/x"]["query_blocks"] == [reference(BLUE), text("?")]


async def test_a_thousand_images_are_imported_in_small_batches_with_progress(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more images in memory than one batch has."""
    for number in range(100):
        (folder / f"{number}.png").write_bytes(saved(painted("L", 8 + number, 9), "PNG"))
    lines = [{"id": str(n), "query": "?", "images": [f"{n % 100}.png", f"{(n * 7) % 100}.png"]} for n in range(500)]
    path = write(folder / "t.jsonl", lines)
    sizes: list[int] = []
    keep = store.images.keep

    async def counted(files: Any) -> None:
        sizes.append(len(files))
        await keep(files)

    monkeypatch.setattr(store.images, "keep", counted)
    shown: list[tuple[str, float]] = []
    target = ImportTarget()
    result = await import_task_file(store, path, target, lambda *step: shown.append((step[0], step[1] / step[2])))
    assert result == ImportResult(500, 0)
    assert (max(sizes) <= task_images.IMAGES_AT_ONCE, sum(sizes)) == (True, 100)
    for phase in ("checking", "importing"):
        parts = [done for name, done in shown if name == phase]
        assert (len(parts), parts, parts[-1]) == (16, sorted(parts), 1.0)


async def test_a_large_image_is_stored_in_chunks(store: Store, folder: Path) -> None:
    data = png(200, 200, packed=None, after=b"") + b""
    padded = data[:-12] + _comment(MAX_INLINE_BYTES) + data[-12:]
    (folder / "large.png").write_bytes(padded)
    await import_task_file(
        store, write(folder / "t.jsonl", [{"id": "a", "query": "?", "image": "large.png"}]), ImportTarget()
    )
    assert await store.images.read(hashlib.sha256(padded).hexdigest()) == padded


def _comment(num_bytes: int) -> bytes:
    from tests.shared.image_files import chunk

    return chunk(b"tEXt", b"Comment\0" + b"x" * num_bytes)


async def test_a_file_that_changes_while_it_is_imported_is_stored_as_it_is_then(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder / "t.jsonl", [{"id": "a", "query": "?", "image": "blue.jpg"}])
    begin = store.begin

    async def changing() -> None:
        (folder / "blue.jpg").write_bytes(RED)
        await begin()

    monkeypatch.setattr(store, "begin", changing)
    await import_task_file(store, path, ImportTarget())
    assert (await stored_payload(store, "a")).query_blocks == [reference(RED), text("?")]
    assert await store.images.sizes([hashlib.sha256(BLUE).hexdigest()]) == {}


async def test_a_file_that_becomes_unreadable_while_it_is_imported_is_an_error_with_its_line(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder / "t.jsonl", [{"id": "a", "query": "?", "image": "blue.jpg"}])
    begin = store.begin

    async def changing() -> None:
        (folder / "blue.jpg").write_bytes(b"no image")
        await begin()

    monkeypatch.setattr(store, "begin", changing)
    with pytest.raises(TaskFileError, match=r't\.jsonl:1: "images", image 1: an unknown type'):
        await import_task_file(store, path, ImportTarget())
    assert await store.tasks.count_by_status() == {}


@pytest.fixture
def served(folder: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_an_image_of_an_allowed_host_is_fetched(store: Store, folder: Path, served: str) -> None:
    path = write(folder / "t.jsonl", [{"id": "a", "query": "?", "image": f"{served}/images/red.png"}])
    with pytest.raises(TaskFileError, match="`image_hosts` allows none"):
        await import_task_file(store, path, ImportTarget())
    await import_task_file(store, path, ImportTarget(image_hosts=["127.0.0.1"]))
    assert (await stored_payload(store, "a")).query_blocks == [reference(RED), text("?")]
    mix = TasksConfig(sources=[{"name": "m", "file": path}], image_hosts=["127.0.0.1"])
    assert (await import_mix(store, mix, policy="main", num_generations=1)).inserted == 1


def test_a_model_of_text_refuses_tasks_with_images_before_anything_starts(folder: Path) -> None:
    path = write(folder / "t.jsonl", [{"id": "a", "query": "?", "image": "blue.jpg", "answer": "4"}])
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    target = ImportTarget(check=TaskCheck(Samplers(model=folder)))
    with pytest.raises(TaskFileError, match=r't\.jsonl:1: "query" shows images; the model in .* reads text alone'):
        check_playable(path, target)
    (folder / "config.json").write_text(json.dumps({"model_type": "llava", "vision_config": {}}))
    with pytest.raises(TaskFileError, match="a vision model of a family that is not known here"):
        check_playable(path, ImportTarget(check=TaskCheck(Samplers(model=folder))))
    check_playable(path, ImportTarget(check=TaskCheck(Samplers())))
    write(path, [{"id": "a", "query": "?", "answer": "4"}])
    check_playable(path, target)


def test_a_missing_file_is_an_error_before_anything_starts(folder: Path) -> None:
    path = write(folder / "t.jsonl", [{"id": "a", "query": "?", "images": ["blue.jpg", "gone.png"]}])
    with pytest.raises(TaskFileError, match=r"t\.jsonl:1: \"images\", image 2: 'gone.png' in .* cannot be read"):
        check_playable(path, ImportTarget())


def test_a_batch_ends_with_its_images_or_its_tasks(folder: Path) -> None:
    lines = [{"id": str(n), "query": "?", **({"images": ["blue.jpg"] * 40} if n % 2 else {})} for n in range(8)]
    path = write(folder / "t.jsonl", lines)
    assert [len(batch) for batch in task_images.batches(checked_lines(path))] == [4, 4]
    write(path, [{"id": str(n), "query": "?"} for n in range(2500)])
    assert [len(batch) for batch in task_images.batches(checked_lines(path))] == [1000, 1000, 500]


async def test_two_imports_at_once_store_each_task_and_image_once(store: Store, folder: Path) -> None:
    lines = [{"id": str(n), "query": "?", "images": ["blue.jpg", "images/red.png"]} for n in range(40)]
    path = write(folder / "t.jsonl", lines)
    results = await asyncio.gather(*(import_task_file(store, path, ImportTarget()) for _ in range(3)))
    assert sum(result.inserted for result in results) == 40
    assert await store.database["images"].count_documents({}) == 2
