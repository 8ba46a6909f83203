"""The result files of measurements."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.bench.results import write_json
from tests.full_disk import room_for


@dataclass(frozen=True, slots=True)
class Row:
    seconds: float


def test_rows_are_written_and_a_full_disk_ends_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    write_json(None, [Row(0.5)])
    write_json(path, [Row(0.5)])
    assert json.loads(path.read_text()) == [{"seconds": 0.5}]
    with room_for(100), pytest.raises(SystemExit, match=r"rows\.json could not be written: .*; free disk space"):
        write_json(path, [Row(0.5)] * 100)
    assert json.loads(path.read_text()) == [{"seconds": 0.5}]
