"""Tables with images become task files: the shapes of verl and TRL data sets, and what is refused."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from shared.errors import ConfigError, DataError, TandemError
from shared.store import Store
from shared.tasks.files import ImportTarget, import_task_file
from shared.tasks.tables import Mapped, convert
from tests.shared.image_files import deflated, png, valid
from tests.shared.test_task_images import BLUE, RED, reference, text

VERL = Mapped({"query": "prompt.0.content", "answer": "reward_model.ground_truth"}, metadata=("extra_info",))
TRL = Mapped({"query": "prompt.0.content", "answer": "solution"})


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def blocks_of(store: Store, path: Path) -> list[Any]:
    await import_task_file(store, path, ImportTarget())
    tasks = await store.database["tasks"].find().sort([("seq", 1)]).to_list()
    return [task["payload"].get("query_blocks") for task in tasks]


async def test_a_table_of_verl_becomes_tasks_with_images(store: Store, tmp_path: Path) -> None:
    """As `examples/data_preprocess/geo3k.py` of verl writes it: one prompt, images in the places of `<image>`."""
    rows = [
        {
            "data_source": "hiyouga/geometry3k",
            "prompt": [{"role": "user", "content": f"<image>Find x.{k} Put it in \\boxed{{}}."}],
            "images": [{"bytes": data, "path": None}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "3"},
            "extra_info": {"split": "train", "index": k},
        }
        for k, data in enumerate([RED, BLUE, RED])
    ]
    target = tmp_path / "out/geo3k.jsonl"
    converted = convert(str(parquet(tmp_path / "in/train.parquet", rows)), target, VERL)
    assert (converted.tasks, converted.left_out) == (3, ("ability", "data_source"))
    assert lines(target)[1] == {
        "id": "train-000002",
        "images": [f"geo3k.images/{hashlib.sha256(BLUE).hexdigest()}.jpeg"],
        "query": "<image>Find x.1 Put it in \\boxed{}.",
        "answer": "3",
        "metadata": {"extra_info": {"split": "train", "index": 1}},
    }
    assert len(list((tmp_path / "out/geo3k.images").iterdir())) == 2
    assert await blocks_of(store, target) == [
        [reference(data), text(f"Find x.{k} Put it in \\boxed{{}}.")] for k, data in enumerate([RED, BLUE, RED])
    ]


@pytest.mark.parametrize("of_image", ["image", "images"])
async def test_a_table_of_trl_with_a_text_as_its_prompt_becomes_tasks(
    store: Store, tmp_path: Path, of_image: str
) -> None:
    """TRL puts the images of such a row before the text of its first user message."""
    image = {"bytes": RED, "path": "a.png"}
    row = {"prompt": [{"role": "user", "content": "What?"}], of_image: image if of_image == "image" else [image]}
    source = parquet(tmp_path / "train.parquet", [{**row, "solution": "4"}])
    convert(str(source), tmp_path / "tasks.jsonl", TRL)
    assert await blocks_of(store, tmp_path / "tasks.jsonl") == [[reference(RED), text("What?")]]


async def test_a_table_of_trl_with_blocks_as_its_prompt_becomes_tasks(store: Store, tmp_path: Path) -> None:
    """Each `{"type": "image"}` stands for the next image; a table writes `text: null` beside it."""
    content = [text("Compare "), {"type": "image", "text": None}, {"type": "image", "text": None}]
    images = [{"bytes": RED, "path": None}, {"bytes": BLUE, "path": None}]
    row = {"prompt": [{"role": "user", "content": content}], "images": images, "solution": "4"}
    convert(str(parquet(tmp_path / "train.parquet", [row])), tmp_path / "tasks.jsonl", TRL)
    assert await blocks_of(store, tmp_path / "tasks.jsonl") == [[text("Compare "), reference(RED), reference(BLUE)]]


async def test_rows_with_and_without_images_may_be_mixed(store: Store, tmp_path: Path) -> None:
    rows = [{"query": "?", "images": [{"bytes": RED, "path": None}]}, {"query": "text", "images": []}]
    convert(str(parquet(tmp_path / "train.parquet", rows)), tmp_path / "tasks.jsonl", Mapped())
    assert await blocks_of(store, tmp_path / "tasks.jsonl") == [[reference(RED), text("?")], None]


async def test_paths_of_a_table_are_relative_to_it_also_if_the_task_file_is_elsewhere(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(RED)
    (tmp_path / "in/train.csv").write_text("query,image\n?,a.png\ntext,\nurl,https://x.test/a.png\n")
    convert(str(tmp_path / "in/train.csv"), tmp_path / "in/near.jsonl", Mapped())
    assert [line.get("images") for line in lines(tmp_path / "in/near.jsonl")][:2] == [["a.png"], None]
    convert(str(tmp_path / "in/train.csv"), tmp_path / "far.jsonl", Mapped())
    name = f"far.images/{hashlib.sha256(RED).hexdigest()}.png"
    assert [line.get("images") for line in lines(tmp_path / "far.jsonl")] == [[name], None, ["https://x.test/a.png"]]
    (tmp_path / "far.jsonl").write_text(json.dumps(lines(tmp_path / "far.jsonl")[0]))
    assert await blocks_of(store, tmp_path / "far.jsonl") == [[reference(RED), text("?")]]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x00\x01random", r"row 2: column 'images', image 1: an unknown type"),
        (RED[: len(RED) // 2], r'row 2: "images", image 1: PNG that'),
        (png(50_000, 50_000, packed=deflated(4)), r'row 2: "images", image 1: PNG of 50000 x 50000 pixels'),
    ],
)
def test_an_error_of_an_image_names_its_row_and_removes_the_files(tmp_path: Path, data: bytes, expected: str) -> None:
    rows = [{"query": "?", "images": [{"bytes": one, "path": "a.png"}]} for one in (RED, data)]
    source = parquet(tmp_path / "in/train.parquet", rows)
    with pytest.raises(TandemError, match=expected):
        convert(str(source), tmp_path / "out/tasks.jsonl", Mapped())
    assert list((tmp_path / "out").iterdir()) == []


def test_files_of_an_earlier_conversion_survive_one_that_fails(tmp_path: Path) -> None:
    source = parquet(tmp_path / "in/train.parquet", [{"query": "?", "images": [{"bytes": RED, "path": None}]}])
    convert(str(source), tmp_path / "tasks.jsonl", Mapped())
    before = sorted(path.name for path in (tmp_path / "tasks.images").iterdir())
    rows = [{"query": "?", "images": [{"bytes": one, "path": None}]} for one in (RED, BLUE, b"x")]
    with pytest.raises(DataError):
        convert(str(parquet(source, rows)), tmp_path / "tasks.jsonl", Mapped())
    assert sorted(path.name for path in (tmp_path / "tasks.images").iterdir()) == before


def test_a_truncated_parquet_file_is_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    rows = [{"query": "?", "images": [{"bytes": valid("PNG"), "path": None}]}] * 40
    source = parquet(tmp_path / "in/train.parquet", rows)
    whole = source.read_bytes()
    for length in (len(whole) - 20, len(whole) // 2, 10):
        source.write_bytes(whole[:length])
        with pytest.raises(DataError, match="no Parquet file that can be read"):
            convert(str(source), tmp_path / "out/tasks.jsonl", Mapped())
        assert list((tmp_path / "out").iterdir()) == []


def test_wrong_places_of_images_are_an_error_with_the_row(tmp_path: Path) -> None:
    rows = [{"query": "<image> and <image>", "images": [{"bytes": RED, "path": None}]}]
    with pytest.raises(ConfigError, match=r'row 1: "query" has "<image>" 2 times, for 1 images'):
        convert(str(parquet(tmp_path / "in/train.parquet", rows)), tmp_path / "tasks.jsonl", Mapped())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
