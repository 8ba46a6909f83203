"""Tables become task files: each kind of file, mappings, and what is refused, by file, row and column."""

import csv
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shared.errors import ConfigError, DataError, TandemError
from shared.tasks.lines import check_task_file
from shared.tasks.tables import Mapped, convert, read_rows
from tandem import app

ROWS = [
    {"question": "2+2?", "label": "it is\n#### 4", "level": 1},
    {"question": '3,"x"?', "label": "#### 9", "level": 2},
]
MAPPED = Mapped({"query": "question", "answer": "label"}, {"answer": "#### (.+)"}, ("level",))


def write(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"train{suffix}"
    if suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def tasks(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".json", ".jsonl"])
def test_a_table_of_each_kind_becomes_a_task_file(tmp_path: Path, suffix: str) -> None:
    source, target = write(tmp_path, suffix, ROWS), tmp_path / "tasks.jsonl"
    assert convert(str(source), target, MAPPED).tasks == 2
    assert check_task_file(target) == 2
    level = str if suffix in (".csv", ".tsv") else int
    assert tasks(target) == [
        {"id": "train-000001", "query": "2+2?", "answer": "4", "metadata": {"level": level(1)}},
        {"id": "train-000002", "query": '3,"x"?', "answer": "9", "metadata": {"level": level(2)}},
    ]


def test_a_path_reaches_into_a_column_and_columns_with_a_fields_name_need_no_mapping(tmp_path: Path) -> None:
    rows = [{"task_id": "a", "prompt": [{"content": "2+2?"}], "reward_model": {"ground_truth": "4"}, "style": "rule"}]
    target = tmp_path / "tasks.jsonl"
    found = convert(
        str(write(tmp_path, ".parquet", rows)),
        target,
        Mapped({"query": "prompt.0.content", "answer": "reward_model.ground_truth"}),
    )
    assert tasks(target) == [{"id": "a", "query": "2+2?", "answer": "4"}]
    assert found.left_out == ("style",)


def test_a_data_set_of_the_hub_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "hub" / "datasets--openai--gsm8k"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("c0ffee")
    snapshot = cached / "snapshots" / "c0ffee" / "main"
    snapshot.mkdir(parents=True)
    write(snapshot, ".parquet", [{"question": "2+2?", "answer": "#### 4"}])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    target = tmp_path / "tasks.jsonl"
    convert("hub:openai/gsm8k/main/train.parquet", target, Mapped(take={"answer": "#### (.+)"}))
    assert tasks(target) == [{"id": "train-000001", "query": "2+2?", "answer": "4"}]
    with pytest.raises(TandemError, match=r"hub:openai/gsm8k/main/test\.parquet: \w+"):
        convert("hub:openai/gsm8k/main/test.parquet", target, Mapped())
    with pytest.raises(TandemError, match=r"expected hub:OWNER/DATASET/PATH/FILE\.parquet"):
        convert("hub:gsm8k", target, Mapped())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "question,label\n2+2?\n", r"a\.csv:2: expected 2 columns"),
        ("a.csv", 'question,label\n"2+2?,4\n', r"a\.csv:\d+: unexpected end of data"),
        (
            "a.csv",
            "label\n4\n",
            r"row 1: \"query\" is missing.*\nMap columns by --map FIELD=COLUMN; those of the file: label",
        ),
        ("a.csv", "question,id\nq,1\nr,1\n", r'row 2: "id" is "1", which line 1 already has'),
        ("a.csv", "question\n", "no row in it"),
        ("a.json", "[1]", r"row 1: expected an object"),
        ("a.json", "[" * 100_000, "not JSON"),
        ("a.jsonl", '{"query": "q"}\n{', r"a\.jsonl:2: not JSON"),
        ("a.parquet", "PAR1 no", r"no Parquet file that can be read"),
        ("a.xlsx", "", r"expected a file that ends in \.csv, "),
        ("a.csv", "question\n\udcff\n", r"byte \d+ is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(tmp_path: Path, name: str, content: str, words: str) -> None:
    source, target = tmp_path / name, tmp_path / "tasks.jsonl"
    source.write_text(content, encoding="utf-8", errors="surrogateescape")
    target.write_text("older\n")
    with pytest.raises(TandemError, match=words):
        convert(str(source), target, Mapped())
    assert target.read_text() == "older\n"
    assert {path.name for path in tmp_path.iterdir()} == {name, "tasks.jsonl"}


@pytest.mark.parametrize(
    ("columns", "take", "words"),
    [
        ({"questoin": "q"}, {}, "'questoin' is no field of a task"),
        ({}, {"answer": "("}, "no regular expression"),
        ({}, {"answer": "x"}, "expected a group"),
        ({"query": "prompt.3"}, {}, r"row 1: no 'prompt' of 'prompt\.3'; its columns: question, label, level"),
        ({}, {"answer": "=> (.+)"}, r"row 1: 'answer' holds nothing that fits"),
    ],
)
def test_a_wrong_mapping_is_named(tmp_path: Path, columns: dict[str, str], take: dict[str, str], words: str) -> None:
    source = write(tmp_path, ".csv", ROWS)
    with pytest.raises(TandemError, match=words):
        convert(str(source), tmp_path / "tasks.jsonl", Mapped(columns, take))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([".csv", ".tsv", ".parquet", ".json", ".jsonl"]), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, suffix: str, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / f"a{suffix}"
    path.write_bytes(content)
    try:
        for row in read_rows(path):
            assert isinstance(row, dict)
    except TandemError as refused:
        found = str(refused)
        if path.name not in found:
            pytest.fail(f"{found!r} does not name the file")


def test_dates_and_decimals_are_kept_as_text_and_bytes_are_refused(tmp_path: Path) -> None:
    row = {"question": "q", "day": date(2026, 11, 22), "price": Decimal("1.50"), "picture": b"\x89"}
    source, target = write(tmp_path, ".parquet", [row]), tmp_path / "tasks.jsonl"
    convert(str(source), target, Mapped(metadata=("day", "price")))
    assert tasks(target)[0]["metadata"] == {"day": "2026-11-22", "price": "1.50"}
    with pytest.raises(TandemError, match="row 1: column 'picture' has a bytes; expected texts"):
        convert(str(source), target, Mapped(metadata=("picture",)))


def test_the_command_tells_what_it_wrote_and_what_it_left_out(tmp_path: Path) -> None:
    source, target = write(tmp_path, ".csv", ROWS), tmp_path / "tasks.jsonl"
    arguments = ["tasks", "convert", str(source), str(target), "--map", "query=question"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"{target}: 2 tasks" in done.output
    assert "columns that no field takes: label, level" in done.output
    again = CliRunner().invoke(app, [*arguments, "--map", "query=label"])
    assert again.exit_code == 2
    assert "'query' is given twice" in again.output


def test_an_import_of_a_table_names_the_command_that_converts_it(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"a table; make JSONL of it by `tandem tasks convert .*train\.csv train\.jsonl`"
    ):
        check_task_file(write(tmp_path, ".csv", ROWS))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", "id,query,query\n1,a,b\n", r"t\.csv: two columns are named 'query'"),
        ("t.tsv", "id\tid\tquery\n1\t2\tb\n", r"t\.tsv: two columns are named 'id'"),
        ("t.csv", "query,question\na,b\n", r"columns 'query' and 'question' mean the same; choose one by --map query="),
        (
            "t.jsonl",
            '{"query": "a"}\n{"query": "a", "query": "b"}\n',
            r"t\.jsonl:2: 'query' is given twice in one object",
        ),
        ("t.json", '[{"query": "a",\n "query": "b"}]', r"t\.json:2: 'query' is given twice in one object"),
    ],
)
def test_of_two_values_of_one_field_none_is_lost(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        convert(str(tmp_path / name), tmp_path / "tasks.jsonl", Mapped())
    assert not (tmp_path / "tasks.jsonl").exists()


def test_a_mapping_chooses_of_two_columns_and_a_table_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("query,question\na,b\n")
    convert(str(tmp_path / "t.csv"), tmp_path / "tasks.jsonl", Mapped({"query": "question"}))
    assert tasks(tmp_path / "tasks.jsonl") == [{"id": "t-000001", "query": "b"}]
    with pytest.raises(ConfigError, match=r"t\.csv: expected a task file's name, such as t\.jsonl"):
        convert(str(tmp_path / "t.csv"), tmp_path / "t.csv", Mapped())


def test_times_that_python_cannot_hold_are_text_with_all_digits_or_refused_by_column(tmp_path: Path) -> None:
    nanoseconds = 1577836800000000001
    columns: dict[str, tuple[list[Any], Any, str | None]] = {
        "nanoseconds": ([nanoseconds], pyarrow.timestamp("ns"), "2020-01-01T00:00:00.000000001"),
        "nanoseconds of a day": ([1001], pyarrow.time64("ns"), "00:00:00.000001001"),
        "the year 10,000": ([253402300800000000], pyarrow.timestamp("us"), "10000-01-01T00:00:00.000000"),
        "a list": ([[nanoseconds]], pyarrow.list_(pyarrow.timestamp("ns")), None),
        "no such zone": ([1], pyarrow.timestamp("us", tz="No/Where"), None),
    }
    for name, (values, kind, expected) in columns.items():
        table = pyarrow.table({"query": pyarrow.array(["q"]), "answer": pyarrow.array(values, kind)})
        pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
        if expected is None:
            with pytest.raises(DataError, match=r"t\.parquet: column 'answer': "):
                convert(str(tmp_path / "t.parquet"), tmp_path / "tasks.jsonl", Mapped())
        else:
            convert(str(tmp_path / "t.parquet"), tmp_path / "tasks.jsonl", Mapped())
            assert tasks(tmp_path / "tasks.jsonl")[0]["answer"] == expected, name
