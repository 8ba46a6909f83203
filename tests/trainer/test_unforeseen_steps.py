"""What nobody expected of a group while it is read sets the group aside; in a step it ends the trainer, which names the step."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from shared.documents.states import DataStatus
from shared.errors import LeaseLost
from shared.processes.mongod import Mongod
from tests.shared.builders import make_task
from tests.trainer.streams import add_groups, publish, start
from tests.trainer.test_offline import bridge as two_runs
from tests.trainer.test_offline import make_config
from trainer import __main__ as program
from trainer.data import reading
from trainer.data.reading import Reader
from trainer.data.stream import RecordStream
from trainer.loop import train
from trainer.process import ending
from trainer.process.parallel import Parallel
from trainer.process.step_errors import StepFailed, named_in_errors
from trainer.process.store_bridge import StoreBridge
from trainer.publishing.publish import Publisher
from trainer.step.learner import Learner

played = two_runs  # the fixture, which brings a run with data
READING = ("tree_of", "check_tokens", "merge")
STEP: dict[str, tuple[type, str]] = {
    "packing": (Reader, "share"),
    "computing": (Learner, "step_in_minibatches"),
    "marking": (RecordStream, "commit"),
    "publishing": (Publisher, "publish"),
}


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("stage", READING)
def test_a_bug_in_reading_a_group_sets_the_group_aside(
    bridge: StoreBridge, alone: Parallel, monkeypatch: pytest.MonkeyPatch, stage: str, prefetch: bool
) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(3))
    method = getattr(reading, stage)

    def sometimes(what: Any, *args: Any, **named: Any) -> Any:
        names = (
            [one.record_id for one in what]
            if stage == "merge"
            else [getattr(what, "id", ""), getattr(what, "record_id", "")]
        )
        if any(":t0:" in name for name in names):
            raise AttributeError("nobody expected this")
        return method(what, *args, **named)

    monkeypatch.setattr(reading, stage, sometimes)
    with start(bridge, alone, prefetch=prefetch) as stream:
        batch = stream.next_batch(1)
        assert batch is not None
        stream.commit(1)
    assert {rid.split(":")[3] for rid in batch.record_ids} == {"t1", "t2"}
    dropped = bridge(bridge.store.data.find({"task": make_task(0).id}))
    assert {data.status for data in dropped} == {DataStatus.DROPPED}
    assert all("a bug: AttributeError: nobody expected this; at " in (data.reason or "") for data in dropped)


@pytest.mark.parametrize("error", [OSError("disk"), MemoryError()])
def test_a_fault_of_the_machine_sets_no_data_aside(
    bridge: StoreBridge, alone: Parallel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*args: Any) -> NoReturn:
        raise error

    publish(bridge, range(1))
    add_groups(bridge, range(2))
    monkeypatch.setattr(reading, "tree_of", fails)
    with start(bridge, alone) as stream, pytest.raises(type(error)):
        stream.next_batch(1)
    assert {data.status for data in bridge(bridge.store.data.find({}))} == {DataStatus.READY}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With which statuses the process would have ended."""
    statuses: list[int] = []

    def end(status: int) -> NoReturn:
        statuses.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(ending, "end_process", end)
    monkeypatch.setattr(program, "begin_logging", lambda *args: None)
    return statuses


@pytest.mark.parametrize("stage", STEP)
def test_a_bug_in_a_step_ends_the_trainer_with_its_cause_as_the_last_line(
    played: StoreBridge,
    mongod: Mongod,
    tmp_path: Path,
    model_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ended: list[int],
    stage: str,
) -> None:
    def broken(*args: Any, **named: Any) -> NoReturn:
        raise AttributeError("nobody expected this")

    config = make_config(
        mongod, model_name_or_path=model_directory, output_dir=tmp_path / "out", max_steps=2, report_to=["none"],
        device="cpu", num_threads=1, dtype="float64", prefetch=False,
    )  # fmt: skip
    monkeypatch.setattr(*STEP[stage], broken)
    monkeypatch.setattr(program.TrainerConfig, "load_or_exit", lambda: config)
    with pytest.raises(SystemExit):
        program.main()
    assert ended == [1]
    last = caplog.records[-1].getMessage()
    assert last.startswith("StepFailed: step 1: AttributeError: nobody expected this; at ")
    assert ("its groups: " in last) == (stage != "packing")
    if stage in ("packing", "computing"):
        monkeypatch.undo()
        train(config)
        assert played(played.store.runs.read()).ends["main"].step == 2, "the next start trains its data"


def test_errors_of_the_project_stay_what_they_are() -> None:
    with pytest.raises(LeaseLost), named_in_errors(1):
        raise LeaseLost("another trainer")
    with (
        pytest.raises(StepFailed, match=r"step 3: KeyError: 'x'; at .*its groups: a, b"),
        named_in_errors(3, ["a", "b"]),
    ):
        raise KeyError("x")
    with pytest.raises(RuntimeError, match="not enough memory"), named_in_errors(3):
        raise RuntimeError("not enough memory")
