"""Numbers as answers keep every digit, as plain decimals, from JSON, CSV and Parquet on."""

import csv
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tasks.exact_numbers import number_text
from shared.tasks.lines import TaskLine, checked_lines, read_task_file
from shared.tasks.tables import Mapped, convert

WRITTEN = {
    "0.00001": "0.00001",
    "2.5e-7": "0.00000025",
    "1e16": "10000000000000000",
    "1E+2": "100",
    "-1.5e-3": "-0.0015",
    "1.50": "1.50",
    "0.1000000000000000000001": "0.1000000000000000000001",
    "123456789012345678901234567890": "123456789012345678901234567890",
    "7": "7",
    "-0.0": "-0.0",
}


def answers(path: Path) -> list[str | list[str] | None]:
    return [line.payload.answer for line in checked_lines(path)]


@pytest.mark.parametrize("is_array", [False, True])
def test_a_number_of_a_task_file_is_an_exact_decimal(tmp_path: Path, is_array: bool) -> None:
    path = tmp_path / "t.jsonl"
    lines = [f'{{"id": {n}, "query": "q", "answer": {one}}}' for n, one in enumerate(WRITTEN)]
    lines.append(f'{{"id": "all", "query": "q", "answer": [{", ".join(WRITTEN)}, "1e-5"]}}')
    path.write_text(f"[{','.join(lines)}]" if is_array else "\n".join(lines))
    assert answers(path) == [*WRITTEN.values(), [*WRITTEN.values(), "1e-5"]]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_double_is_that_double_without_an_exponent(value: float) -> None:
    text = number_text(value)
    assert float(text) == value
    assert Decimal(text) == Decimal(repr(value))
    assert "e" not in text.lower()


def test_tables_keep_the_digits(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    doubles = [1e-5, 2.5e-7, 1e16, 0.1, 2.0]
    table = {
        "query": ["q"] * 5,
        "answer": doubles,
        "single": np.asarray([0.1, 1e-5, 2.5, 1e10, 3], np.float32),
        "halves": pyarrow.array([[np.float16(0.1)], [], None, [np.float16(2)], []], pyarrow.list_(pyarrow.float16())),
    }
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    convert(str(tmp_path / "t.parquet"), tmp_path / "d.jsonl", Mapped(metadata=["single", "halves"]))
    exact = ["0.00001", "0.00000025", "10000000000000000", "0.1", "2.0"]
    assert answers(tmp_path / "d.jsonl") == exact
    metadata = [line.payload.metadata for line in read_task_file(tmp_path / "d.jsonl") if isinstance(line, TaskLine)]
    assert [one["single"] for one in metadata] == [0.1, 1e-5, 2.5, 1e10, 3.0]
    assert [one["halves"] for one in metadata] == [[0.1], [], None, [2.0], []]
    convert(str(tmp_path / "t.parquet"), tmp_path / "f.jsonl", Mapped({"answer": "single"}))
    assert answers(tmp_path / "f.jsonl") == ["0.1", "0.00001", "2.5", "10000000000.0", "3.0"]


def test_json_and_csv_tables_keep_the_digits(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("\n".join(f'{{"query": "q", "answer": {one}}}' for one in WRITTEN))
    convert(str(tmp_path / "t.json"), tmp_path / "j.jsonl", Mapped())
    assert answers(tmp_path / "j.jsonl") == list(WRITTEN.values())
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("query", "answer"), *(("q", one) for one in WRITTEN)])
    convert(str(tmp_path / "t.csv"), tmp_path / "c.jsonl", Mapped())
    assert answers(tmp_path / "c.jsonl") == list(WRITTEN)
    assert json.loads((tmp_path / "c.jsonl").read_text().splitlines()[0])["answer"] == "0.00001"
