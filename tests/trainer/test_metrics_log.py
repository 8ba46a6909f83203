"""The log of a run: a JSONL that always exists, and Accelerate's trackers beside it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError, DataError
from shared.names import cut
from tests.full_disk import room_for
from trainer.reporting.hyperparameters import flattened
from trainer.reporting.metrics import MetricsLog
from trainer.settings.config import TrainerConfig


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from its files."""
    (directory,) = {file.parent for file in folder.rglob("events.out.tfevents.*")}
    events = read_events(directory)
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def hyperparameters(folder: Path) -> list[dict[str, Any]]:
    """What TensorBoard's page of hyperparameters shows: one set for each start, in order."""
    plugin = pytest.importorskip("tensorboard.plugins.hparams.plugin_data_pb2")
    found = []
    for directory in sorted({file.parent for file in folder.glob("*/events.out.tfevents.*")}):
        metadata = read_events(directory).SummaryMetadata("_hparams_/session_start_info")
        info = plugin.HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
        found.append({name: getattr(v, v.WhichOneof("kind")) for name, v in info.hparams.items()})
    return found


def read_events(directory: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(directory))
    events.Reload()
    return events


def wait_for_the_next_second() -> None:
    """TensorBoard reads its files by their names: the second, then the process's count of them, of which 10 sorts before 9."""
    began = int(time.time())
    while int(time.time()) == began:
        time.sleep(0.01)


@pytest.mark.usefixtures("alone")  # trackers of Accelerate make its state, which ends with the session of the fixture
@pytest.mark.parametrize("trackers", [None, ["tensorboard"]])
def test_tensorboard_shows_what_the_jsonl_has(tmp_path: Path, trackers: list[str] | None) -> None:
    pytest.importorskip("tensorboard")
    with MetricsLog(tmp_path / "metrics.jsonl", trackers=trackers, run_name="demo") as log:
        for step in (1, 2):
            log.log(step, {"loss/loss": 0.5 * step, "alarm/k3": 0.0})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss/loss"] for line in lines] == [0.5, 1.0]
    assert scalars(tmp_path)["loss/loss"] == [(1, 0.5), (2, 1.0)]
    assert scalars(tmp_path)["alarm/k3"] == [(1, 0.0), (2, 0.0)]
    wait_for_the_next_second()
    with MetricsLog(tmp_path / "metrics.jsonl", trackers=trackers, run_name="demo", resume_step=2) as log:
        log.log(2, {"loss/loss": 7.0})
    assert scalars(tmp_path)["loss/loss"] == [(1, 0.5), (2, 7.0)]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("policy", ["main", "judge"])
def test_tensorboard_shows_the_settings_of_every_start_under_the_policys_own_name(tmp_path: Path, policy: str) -> None:
    pytest.importorskip("tensorboard")
    values = {
        "run": "demo",
        "db_connection_string": "mongodb://ann:secret@db/",
        "policy": policy,
        "model_name_or_path": Path("/models/tiny"),
        "learning_rate": 0.5,
        "lora_rank": 2,
        "lora_target_modules": ["q", "v"],
    }
    config = TrainerConfig.model_validate(values)
    for rate in (0.5, 0.25):
        changed = TrainerConfig.model_validate(values | {"learning_rate": rate})
        with MetricsLog(
            tmp_path / "metrics.jsonl", run_name=changed.tracked_as, trackers=None, settings=changed.snapshot()
        ):
            pass
    (folder,) = (child for child in tmp_path.iterdir() if child.is_dir())
    assert folder.name == {"main": "demo", "judge": "demo-judge"}[policy]
    first, second = hyperparameters(folder)
    assert (first["learning_rate"], second["learning_rate"]) == (0.5, 0.25)
    assert (first["policy"], first["lora_target_modules"], first["data_run"]) == (policy, '["q", "v"]', "null")
    assert (first["prefetch"], first["loss"], first["model_name_or_path"]) == (
        True,
        "MINIRL",
        "/models/tiny",
    )
    assert first.keys() == config.snapshot().keys()
    assert not any(b"secret" in file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_settings_are_one_level_of_short_plain_values() -> None:
    settings = {
        "a": {"b": {"c": None}, "empty": {}},
        "long": "x" * 10_000,
        "n": 3,
        "yes": True,
        "list": [1, {"k": "é"}],
    }
    flat = flattened(settings)
    assert flat.pop("long") == cut("x" * 10_000, 300)
    assert flat == {"a.b.c": "null", "a.empty": "{}", "n": 3, "yes": True, "list": '[1, {"k": "é"}]'}
    assert len(flattened({str(n): n for n in range(5_000)})) == 1_000


@pytest.mark.parametrize("trackers", [["none"], []])
def test_the_jsonl_exists_also_without_a_tracker(tmp_path: Path, trackers: list[str]) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl", trackers=trackers) as log:
        log.log(1, {"loss/loss": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss/loss": None}
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tracker 'comet_ml': its package is not installed"):
        MetricsLog(tmp_path / "metrics.jsonl", trackers=["comet_ml"])


def test_a_tracker_that_nobody_knows_is_answered_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracker 'tensorbord': not known; known are .*tensorboard.* and none"):
        MetricsLog(tmp_path / "metrics.jsonl", trackers=["tensorbord"])


@pytest.mark.usefixtures("alone")
def test_a_resume_forgets_the_steps_that_its_checkpoint_has_not(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (1, 2, 3):
            log.log(step, {"x": float(step)})
    path.write_text(path.read_text() + '{"step": 4, "x"')
    with MetricsLog(path, resume_step=3) as log:
        log.log(3, {"x": 30.0})
    assert [json.loads(line)["x"] for line in path.read_text().splitlines()] == [1.0, 2.0, 30.0]


def test_a_full_disk_is_said_and_the_lines_before_it_stay(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    said = r"metrics\.jsonl could not be written: .*; free disk space"
    with MetricsLog(path) as log:
        log.log(1, {"x": 1.0})
        with room_for(path.stat().st_size + 5), pytest.raises(DataError, match=said):
            log.log(2, {"x": 2.0})
    with MetricsLog(path, resume_step=2) as log:
        log.log(2, {"x": 3.0})
    assert [json.loads(line)["x"] for line in path.read_text().splitlines()] == [1.0, 3.0]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/metrics\.jsonl could not be written: .*repair the folder"):
        MetricsLog(tmp_path / "file" / "metrics.jsonl")
