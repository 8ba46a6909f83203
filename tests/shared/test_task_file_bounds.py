"""Wrong files given as task files: the bytes read of one line or element are bounded."""

import json
import tracemalloc
from pathlib import Path

import pytest

from shared.tasks.line_errors import TaskFileError
from shared.tasks.lines import MAX_LINE_BYTES, check_task_file

FIRST = {"id": "a", "query": "q"}


def task_of(size: int) -> str:
    """A line of a valid task, `size` bytes with its end."""
    rest = len(json.dumps({"id": "b", "query": ""})) + 1
    return json.dumps({"id": "b", "query": "q" * (size - rest)}) + "\n"


@pytest.mark.parametrize("is_array", [False, True], ids=["lines", "an array"])
def test_a_task_beyond_the_bound_is_refused_with_its_line_and_one_at_the_bound_is_taken(
    tmp_path: Path, is_array: bool
) -> None:
    path = tmp_path / "tasks.jsonl"

    def write(size: int) -> None:
        lines = json.dumps(FIRST), task_of(size)
        path.write_text(f"[{lines[0]},\n{lines[1].rstrip()}]" if is_array else "\n".join(lines))

    write(MAX_LINE_BYTES)
    assert check_task_file(path) == 2
    write(MAX_LINE_BYTES + 2)
    with pytest.raises(TaskFileError) as caught:
        check_task_file(path)
    assert str(caught.value) == f"{path}:2: longer than {MAX_LINE_BYTES} bytes; expected one task on a line"


def test_of_a_file_without_an_end_of_line_no_more_is_read_than_the_bound(tmp_path: Path) -> None:
    """A disk image, say: 256 MiB that hold nothing."""
    path = tmp_path / "disk.img"
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(256 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(TaskFileError, match="longer than"):
            check_task_file(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()
