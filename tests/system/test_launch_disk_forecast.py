"""The launcher says in time that the disk will be full."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tandem.launch import disk_forecast
from tandem.launch.disk_forecast import DiskForecast

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that are free, of which a test sets the last."""
    found = [1_000_000_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**12, 10**12 - found[-1], found[-1]))
    return found


def grow(folder: Path, name: str, size: int) -> None:
    (path := folder / name).parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(size)


def test_growth_of_the_database_gives_the_step_at_which_the_disk_is_full(tmp_path: Path, free: list[int]) -> None:
    forecast = DiskForecast(tmp_path)
    grow(tmp_path, "mongodb/data/x", 300_000_000)  # the journal, which grows no more
    grow(tmp_path, "metrics.jsonl", 0)
    assert forecast.observe(10, 1000) is None, "nothing is known of its growth"
    grow(tmp_path, "mongodb/data/x", 340_000_000)
    assert forecast.observe(20, 200) is None, "180 steps of 4 MB fit"
    warning = forecast.observe(20, 1000)
    assert warning == (
        f"the disk of {tmp_path} will be full at about step 270 of 1000: 1.0 GB are free, and database and logs grow by "
        "4 MB a step; free some, or use a database elsewhere"
    )
    assert forecast.observe(21, 1000) is None, "it was just said"
    free.append(400_000_000)
    assert "at about step 1" in (forecast.observe(21, 1000) or "")


def test_what_settings_bound_does_not_count_and_a_resume_begins_anew(tmp_path: Path, free: list[int]) -> None:
    forecast = DiskForecast(tmp_path)
    grow(tmp_path, "mongodb/data/x", 1_000)
    forecast.observe(0, 1000)
    grow(tmp_path, "checkpoints/step-000001/a", 800_000_000)
    grow(tmp_path, "versions/step-000001-1/a", 800_000_000)
    assert forecast.observe(10, 1000) is None
    grow(tmp_path, "mongodb/data/x", 900_000_000)
    assert forecast.observe(4, 1000) is None, "the database took it before step 4 was taken again"
    assert forecast.observe(14, 1000) is None


def test_the_folder_is_walked_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = DiskForecast(tmp_path)
    assert forecast.is_due()
    forecast.observe(0, 10)
    assert not forecast.is_due()
    monkeypatch.setattr(disk_forecast, "EVERY_S", 0.0)
    assert forecast.is_due()
