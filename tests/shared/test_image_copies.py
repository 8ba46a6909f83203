"""Images go where the documents that name them go: copies of groups, data files, archives; and with a run that is deleted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.documents.content import image_block
from shared.documents.images import MAX_INLINE_BYTES, ImageFile
from shared.processes.mongod import Mongod
from shared.store import Store, archive, data_file
from shared.store.archive import archive_run, restore_run
from shared.store.copying import copy_groups
from shared.store.data_file import export_data, import_data
from shared.store.image_copies import image_documents, named_images
from shared.store.run_sizes import sized_run
from tests.shared.episodes import whole_run
from tests.shared.image_files import image_file

QUERY, MESSAGE, TOOL, PLACED, OTHER = (
    image_file(name.encode()) for name in ("query", "message", "tool", "placed", "other")
)
LARGE = image_file(bytes(range(250)) * (MAX_INLINE_BYTES // 250 + 1))
NAMED = (QUERY, MESSAGE, TOOL, PLACED, LARGE)
GROUP = "main:train:0:t0"


def content(*files: ImageFile) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "What?"}, *map(image_block, files)]


async def name_images(store: Store) -> None:
    """In a task, and in a request's messages, its tool calls and its tokens."""
    await store.images.keep([*NAMED, OTHER])
    await store.database["tasks"].update_one({"_id": GROUP}, {"$set": {"payload.query_blocks": content(QUERY)}})
    call = {
        "name": "paint",
        "arguments": {},
        "is_error": False,
        "duration_s": 0.1,
        "result": "",
        "blocks": content(TOOL),
    }
    values = {
        "messages": [{"role": "user", "content": content(MESSAGE, LARGE)}, {"role": "user", "content": "text"}],
        "tool_calls": [call],
        "images": [{"sha256": PLACED.sha256, "first": 0, "count": 1, "grid": None}],
    }
    request = await store.database["dispatched_sampling_tasks"].update_one(
        {"record": f"{GROUP}:0:1", "turn": 0}, {"$set": values}
    )
    assert request.modified_count == 1


async def digests_of(store: Store) -> set[str]:
    return set(await store.database["images"].distinct("_id"))


async def check_images(store: Store) -> None:
    """Exactly those that are named, whole."""
    assert await digests_of(store) == {file.sha256 for file in NAMED}
    for file in NAMED:
        assert await store.images.read(file.sha256) == file.data


@pytest.fixture
async def other(mongod: Mongod, store: Store) -> AsyncIterator[Store]:
    async with Store.open(mongod.connection_string, store.run + "-other", create=False) as other:
        yield other
        await other.client.drop_database(other.run)


async def test_images_are_copied_with_the_groups_that_name_them(store: Store, other: Store) -> None:
    await whole_run(store)
    await name_images(store)
    await other.begin()
    assert await copy_groups(store, other, "main") == 2
    await check_images(other)
    await other.database["record_data"].delete_many({})  # as an interrupted copy leaves it
    await other.database["images"].delete_one({"_id": TOOL.sha256})
    await copy_groups(store, other, "main")
    await check_images(other)


async def test_a_copy_of_texts_makes_no_collection_of_images(store: Store, other: Store) -> None:
    await whole_run(store)
    await other.begin()
    await copy_groups(store, other, "main")
    assert not {"images", "image_chunks"} & set(await other.database.list_collection_names())


async def test_a_group_with_a_missing_image_is_copied_without_it(store: Store, other: Store) -> None:
    await whole_run(store)
    await name_images(store)
    await store.database["images"].delete_one({"_id": TOOL.sha256})
    await other.begin()
    assert await copy_groups(store, other, "main") == 2
    assert await digests_of(other) == {file.sha256 for file in NAMED} - {TOOL.sha256}


async def test_a_data_file_has_each_image_once_before_what_names_it(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole_run(store, tasks=40)
    await name_images(store)
    again = {"$set": {"payload.query_blocks": content(QUERY)}}
    await store.database["tasks"].update_one({"_id": "main:train:0:t39"}, again)  # of a later batch
    path = tmp_path / "data.bson.gz"
    assert await export_data(store, path, "main") == 40
    names = [
        (collection, document["_id"]) for collection, document in data_file._documents(path) if "image" in collection
    ]
    assert len(names) == len(set(names)) == 5 + 3
    monkeypatch.setattr(data_file, "WRITES_AT_ONCE_BYTES", 1_000_000)
    written: list[int] = []
    write = data_file.write

    async def counted(target: Store, copied: Any) -> int:
        written.append(sum(data_file.data_bytes(document) for _, document in copied))
        return await write(target, copied)

    monkeypatch.setattr(data_file, "write", counted)
    assert await import_data(other, path) == 40
    assert max(written) <= 5_000_000  # one chunk more
    await check_images(other)


async def test_an_archive_has_all_images_and_is_restored_in_small_batches(
    store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole_run(store)
    await name_images(store)
    counts = await archive_run(store, tmp_path / "run.bson.gz")
    assert (counts["images"], counts["image_chunks"]) == (6, 3)
    monkeypatch.setattr(archive, "WRITES_AT_ONCE_BYTES", 1_000_000)
    collection = type(other.database["images"])
    bulk_write = collection.bulk_write
    written: list[int] = []

    async def counted(self: Any, requests: Any, **options: Any) -> Any:
        written.append(sum(data_file.data_bytes(request._doc) for request in requests))
        return await bulk_write(self, requests, **options)

    monkeypatch.setattr(collection, "bulk_write", counted)
    await restore_run(other, tmp_path / "run.bson.gz")
    assert 1_000_000 < max(written) <= 5_000_000
    for file in (*NAMED, OTHER):
        assert await other.images.read(file.sha256) == file.data


async def test_images_count_in_a_runs_size_and_go_with_it(store: Store, mongod: Mongod) -> None:
    async with Store.open(mongod.connection_string, store.run + "-size") as sized:
        before = await sized_run(sized)
        await sized.images.keep([LARGE, QUERY])
        after = await sized_run(sized)
        assert before is not None
        assert after is not None
        assert after.documents == before.documents + 5
        await sized.client.drop_database(sized.run)
        assert await sized_run(sized) is None
        assert await sized.images.sizes([QUERY.sha256]) == {}


def test_what_names_no_image_has_none() -> None:
    assert not list(named_images("tasks", {"payload": {"query": "q"}}))
    assert not list(named_images("dispatched_sampling_tasks", {"messages": [{"content": "x"}, {}], "tool_calls": [{}]}))
    assert not list(named_images("records", {"images": [{"sha256": "x"}]}))


async def test_chunks_come_before_their_image(store: Store) -> None:
    await store.images.keep([LARGE])
    assert [name async for name, _ in image_documents(store.database, [LARGE.sha256, "0" * 64])] == [
        *["image_chunks"] * 3,
        "images",
    ]
