"""The result files of measurements."""

import json
from pathlib import Path

import pytest

from scripts.bench.harness import write_json
from tests.full_disk import room_for

ROWS = {"steps": [{"seconds": 0.5}]}


def test_rows_are_written_and_a_full_disk_ends_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_json(path, ROWS)
    assert json.loads(path.read_text()) == ROWS
    with room_for(100), pytest.raises(SystemExit, match=r"rows\.json could not be written: .*; free disk space"):
        write_json(path, {"steps": ROWS["steps"] * 100})
    assert json.loads(path.read_text()) == ROWS
