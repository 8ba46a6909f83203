"""An import is all or nothing: what no task may hold is refused with its line and field before the first task is written."""

import json
from pathlib import Path
from typing import Any

import bson
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigError, DataError
from shared.outside_values import MAX_DEPTH
from shared.store import Store
from shared.store.tasks import TASKS_AT_ONCE
from shared.tasks.files import MOST_GENERATIONS, ImportTarget, import_task_file
from shared.tasks.line_errors import TaskFileError
from shared.tasks.lines import TaskLine, check_task_file, read_task_file
from shared.tasks.stored_values import MAX_TASK_BYTES
from shared.tasks.tables import Mapped, convert
from tests.shared.lines_of_tasks import line, write
from tests.shared.test_task_import import order


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


WRONG = {
    "34 MB as BSON": (
        json.dumps(line(0, metadata={"board": [1] * 2_200_000})),
        f'bytes in MongoDB, "metadata" alone .*; expected at most {MAX_TASK_BYTES}',
    ),
    "178 levels": (json.dumps(line(0, metadata={"x": nested(178)})), f"is nested more than {MAX_DEPTH} levels deep"),
    "178 levels of objects": ('{"id": "a", "query": "q", "metadata": ' + '{"a": ' * 178 + "1" + "}" * 179, "is nested more than"),
    "an infinite answer": ('{"id": "a", "query": "q", "answer": 1e999}', r'"answer" is no number: inf'),
    "an infinite answer in a list": ('{"id": "a", "query": "q", "answer": [1, -1e999]}', r'"answer\[1\]" is no number: -inf'),
    "an infinite id": ('{"id": 1e999, "query": "q"}', '"id" is no number'),
    "an infinite temperature": ('{"id": "a", "query": "q", "temperature": 1e999}', '"temperature" is no number'),
    "an infinite weight": ('{"id": "a", "query": "q", "scorers": [{"name": "f1", "weight": 1e999}]}', r'"scorers\[0\].weight"'),
    "infinite metadata": ('{"id": "a", "query": "q", "metadata": {"m": [{"x": 1e999}]}}', r'"metadata.m\[0\].x" is no number'),
    "65 bits": ('{"id": "a", "query": "q", "metadata": {"seed": 18446744073709551615}}', '"metadata.seed" is a whole number'),
    "a NUL character": ('{"id": "a", "query": "a\\u0000b"}', r'"query" contains the character'),
    "a NUL character in a name": ('{"id": "a", "query": "q", "metadata": {"a\\u0000": 1}}', '"metadata" has a name with'),
    "half a character": ('{"id": "a", "query": "\\ud83d"}', '"query" contains half of a surrogate pair'),
    "half a character in a name": ('{"id": "a", "query": "q", "metadata": {"\\ud83d": 1}}', '"metadata" has a name that'),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
async def test_nothing_is_written_for_a_task_behind_a_full_batch_that_no_document_holds(
    store: Store, tmp_path: Path, text: str, words: str
) -> None:
    good = [json.dumps(line(k)) for k in range(1, TASKS_AT_ONCE + 1)]
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join([*good, text]) + "\n")
    with pytest.raises(TaskFileError, match=rf"{path}:{TASKS_AT_ONCE + 1}: .*{words}"):
        await import_task_file(store, path, ImportTarget())
    assert await order(store) == []


async def test_a_task_at_the_bounds_is_stored(store: Store, tmp_path: Path) -> None:
    deep = line(0, metadata={"x": nested(MAX_DEPTH - 2)}, answer=2**200)
    large = line(1, metadata={"board": ["x" * 1000] * (MAX_TASK_BYTES // 1100)})
    path = write(tmp_path / "set.jsonl", [deep, large])
    await import_task_file(store, path, ImportTarget(num_generations=MOST_GENERATIONS))
    assert await order(store) == ["t0", "t1"]
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    assert task.payload.answer == str(2**200)
    with pytest.raises(ConfigError, match=f"expected 1 to {MOST_GENERATIONS} episodes"):
        ImportTarget(num_generations=MOST_GENERATIONS + 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150)
@given(field=st.sampled_from(["metadata", "answer", "id", "query", "temperature", "tools", "actors"]), value=VALUES)
def test_what_is_read_of_any_json_can_be_stored(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    given_value = {"x": value} if field == "metadata" else value
    path.write_text(json.dumps({"id": "a", "query": "q"} | {field: given_value}), encoding="utf-8")
    for found in read_task_file(path):
        if isinstance(found, TaskLine):
            bson.encode(found.payload.model_dump())
        else:
            assert str(found).startswith(f"{path}:1: ")


@pytest.mark.parametrize("start", ["\n", "\r\n \t\n", "\ufeff", "\ufeff\n\n", " "], ids=repr)
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_an_array_behind_blanks_is_imported_and_converted(tmp_path: Path, start: str, suffix: str) -> None:
    path, target = tmp_path / f"set{suffix}", tmp_path / "tasks.jsonl"
    path.write_text(
        f'{start}[\r\n{{"id": "a", "query": "q"}},\r\n{{"id": "b", "query": "q"}}]\r\n', encoding="utf-8", newline=""
    )
    assert check_task_file(path) == 2
    assert convert(str(path), target, Mapped()).tasks == 2
    assert check_task_file(target) == 2


def _table(folder: Path, rows: list[dict[str, Any]], suffix: str) -> Path:
    path = folder / f"table{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_nan_of_a_table_is_null_and_an_infinity_is_refused_by_its_column(tmp_path: Path, suffix: str) -> None:
    nan, target = float("nan"), tmp_path / "tasks.jsonl"
    rows = [
        {"question": "q", "level": 1.5, "inside": {"a": [1.0, nan]}, "answer": 1.0, "unused": float("inf")},
        {"question": "r", "level": nan, "inside": {"a": [nan, 2.0]}, "answer": nan, "unused": nan},
    ]
    source = _table(tmp_path, rows, suffix)
    convert(str(source), target, Mapped({"query": "question"}, metadata=("level", "inside", "inside.a")))
    first, second = (json.loads(text) for text in target.read_text().splitlines())
    assert first["metadata"] == {"level": 1.5, "inside": {"a": [1.0, None]}, "inside.a": [1.0, None]}
    assert second["metadata"] == {"level": None, "inside": {"a": [None, 2.0]}, "inside.a": [None, 2.0]}
    assert "answer" not in second
    target.unlink()
    with pytest.raises(DataError, match=f"{source}: row 1: column 'unused' is inf; expected a finite number"):
        convert(str(source), target, Mapped({"query": "question"}, metadata=("unused",)))
    assert not target.exists()
