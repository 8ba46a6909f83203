"""Offline training: another run's groups, trained here to the end, traced here, and nothing changed there."""

import asyncio
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shared.documents.states import DataStatus, RunState
from shared.errors import ConfigError, DataError
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.run import audit
from tandem.what_if.verify import VerifyConfig, verify
from tests.shared.builders import set_settings
from tests.shared.episodes import announce, whole_run
from trainer.data import offline
from trainer.data.offline import bring_in, check_source
from trainer.data.stream import RecordStream
from trainer.loop import train
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.settings.config import TrainerConfig

RUN, OTHER = "offline-test", "offline-other"
T = TypeVar("T")


def there(mongod: Mongod, work: Callable[[Store], Awaitable[T]], run: str = OTHER) -> T:
    async def opened() -> T:
        async with Store.open(mongod.connection_string, run) as store:
            return await work(store)

    return asyncio.run(opened())


async def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    names = sorted(await store.database.list_collection_names())
    return {name: await store.database[name].find().sort([("_id", 1)]).to_list() for name in names}


def make_config(mongod: Mongod, **fields: Any) -> TrainerConfig:
    values = {"groups_per_step": 1, "data_run": OTHER, "model_name_or_path": Path("."), **fields}
    return TrainerConfig(run=RUN, db_connection_string=mongod.connection_string, **values)


@pytest.fixture
def bridge(mongod: Mongod) -> Iterator[StoreBridge]:
    there(mongod, lambda store: whole_run(store, tasks=3))  # the first of three groups is trained, in step 1
    with StoreBridge(mongod.connection_string, RUN) as bridge:
        yield bridge
        for run in (RUN, OTHER):
            bridge(bridge.store.client.drop_database(run))


def used(bridge: StoreBridge, parallel: Parallel, config: TrainerConfig) -> tuple[list[str], str]:
    """The task of every step until the data is used up, and what the stream says then."""
    tasks = []
    with RecordStream(bridge, config, parallel, trainer_generation=0) as stream:
        while (batch := stream.next_batch(len(tasks) + 1)) is not None:
            assert batch.metrics["data/staleness_max"] == 0.0
            tasks.append(batch.record_ids[0].split(":")[3])
            stream.commit(len(tasks))
            bridge(announce(bridge.store, len(tasks)))
        return tasks, stream.end


def run_starts(bridge: StoreBridge) -> list[int]:
    return bridge(bridge.store.runs.read()).starts["main"]


def prepare(bridge: StoreBridge, config: TrainerConfig, parallel: Parallel) -> None:
    bridge(bridge.store.database["runs"].update_one({"_id": "run"}, {"$set": {"trainer_generations.main": 0}}))
    bridge(set_settings(bridge.store, "trainer-main", config.snapshot()))
    bring_in(bridge, config, parallel)


def test_every_group_of_the_other_run_is_trained_once_an_epoch_and_nothing_is_written_there(
    bridge: StoreBridge, alone: Parallel, mongod: Mongod
) -> None:
    before = there(mongod, everything)
    config = make_config(mongod, max_trained_count=2)
    prepare(bridge, config, alone)
    tasks, end = used(bridge, alone, config)
    assert tasks == ["t0", "t1", "t2"] * 2
    assert end == f"run {OTHER} is used up: 0 groups left of the 1 that a step takes"
    assert {tuple(d.trained_steps) for d in bridge(bridge.store.data.find({}))} == {(1, 4), (2, 5), (3, 6)}
    assert there(mongod, everything) == before


def test_a_run_that_trained_offline_passes_the_audit_and_its_steps_can_be_traced(
    bridge: StoreBridge, alone: Parallel, mongod: Mongod
) -> None:
    config = make_config(mongod)
    prepare(bridge, config, alone)
    used(bridge, alone, config)
    report = bridge(audit(bridge.store))
    assert report.ok, report
    chain = bridge(bridge.store.questions.chain({"trained_steps": 2}))
    assert {row["task"] for row in chain} == {"main:train:0:t1"}
    with pytest.raises(DataError, match="verify that"):
        bridge(verify(bridge.store, VerifyConfig(run=RUN, db_connection_string="given")))


def test_a_copy_that_was_broken_off_is_completed_and_a_complete_one_is_left_alone(
    bridge: StoreBridge, alone: Parallel, mongod: Mongod
) -> None:
    config = make_config(mongod)
    prepare(bridge, config, alone)
    whole = bridge(everything(bridge.store))
    bridge(bridge.store.database["record_data"].delete_many({"task": "main:train:0:t1"}))  # written last
    bridge(bridge.store.database["dispatched_sampling_tasks"].delete_one({"_id": "main:train:0:t1:1:1:2"}))
    bring_in(bridge, config, alone)
    assert bridge(everything(bridge.store)) == whole
    used(bridge, alone, config)
    bring_in(bridge, config, alone)
    assert {d.status for d in bridge(bridge.store.data.find({}))} == {DataStatus.TRAINED}


def test_while_the_first_process_copies_the_others_hear_from_it_again_and_again(
    bridge: StoreBridge, alone: Parallel, mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective lasts 1800 s at most, a copy as long as it takes: here until the others have heard of it three times."""
    heard: list[bool] = []
    enough = threading.Event()
    broadcast, copy = Parallel.broadcast_object, offline.copy_groups

    def broadcast_and_heard(self: Parallel, value: bool) -> Any:
        heard.append(broadcast(self, value))
        if len(heard) == 3:
            enough.set()
        return heard[-1]

    async def slow_copy(source: Store, target: Store, policy: str) -> int:
        assert await asyncio.to_thread(enough.wait, 60)
        return await copy(source, target, policy)

    monkeypatch.setattr(Parallel, "broadcast_object", broadcast_and_heard)
    monkeypatch.setattr(offline, "copy_groups", slow_copy)
    monkeypatch.setattr(offline, "KEEP_ALIVE_S", 0.02)
    bring_in(bridge, make_config(mongod), alone)
    assert heard[:3] == [False] * 3
    assert heard[-1]
    assert len(bridge(bridge.store.data.find({}))) > 0, "and then the copy is there"


def test_data_of_samplers_and_of_another_run_is_never_mixed(
    bridge: StoreBridge, alone: Parallel, mongod: Mongod
) -> None:
    config = make_config(mongod)
    check_source(bridge, config)
    prepare(bridge, config, alone)
    check_source(bridge, config)
    with pytest.raises(ConfigError, match=f"has the data of run {OTHER}, and data_run is not set"):
        check_source(bridge, make_config(mongod, data_run=None))
    with pytest.raises(ConfigError, match="has the data of its own samplers"):
        there(mongod, lambda store: asyncio.to_thread(_check_other, mongod))


def _check_other(mongod: Mongod) -> None:
    with StoreBridge(mongod.connection_string, OTHER) as bridge:
        check_source(bridge, make_config(mongod, data_run="third"))


def test_a_run_that_is_not_there_is_refused_and_not_made(bridge: StoreBridge, alone: Parallel, mongod: Mongod) -> None:
    with pytest.raises(ConfigError, match="no run 'offline-missing'"):
        bring_in(bridge, make_config(mongod, data_run="offline-missing"), alone)
    assert "offline-missing" not in bridge(bridge.store.questions.run_names())


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_trainer_ends_by_itself_when_the_data_is_used_up_and_has_saved(
    bridge: StoreBridge,
    mongod: Mongod,
    tmp_path: Path,
    model_directory: Path,
    caplog: pytest.LogCaptureFixture,
    drop_last: bool,
) -> None:
    config = make_config(
        mongod, groups_per_step=2, drop_last=drop_last, model_name_or_path=model_directory, output_dir=tmp_path / "out",
        save_steps=100, report_to=["none"], device="cpu", num_threads=1, dtype="float64",
    )  # fmt: skip
    with caplog.at_level("INFO"):
        train(config)
    steps, groups = (1, 1) if drop_last else (2, 0)
    used_up = f"before step {steps + 1} of 100: run {OTHER} is used up: {groups} groups left of the 2 that a step takes"
    assert f"ended {used_up}" in caplog.text
    assert [path.name for path in (tmp_path / "out" / "checkpoints").glob("step-*")] == [f"step-{steps:06d}"]
    run = bridge(bridge.store.runs.read())
    assert (run.state, run.ends["main"].step, run.ends["main"].reason) == (RunState.ENDED, steps, used_up)
    assert run.ends["main"].used_up
    trained = [len(d.trained_steps) for d in bridge(bridge.store.data.find({}))]
    assert trained == [1, 1, 1, 1, 0, 0] if drop_last else trained == [1] * 6


def test_a_trainer_that_was_told_to_stop_says_so_and_one_that_goes_on_says_when_it_ends(
    bridge: StoreBridge, mongod: Mongod, tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        mongod, model_name_or_path=model_directory, output_dir=tmp_path / "out", max_steps=3, report_to=["none"],
        device="cpu", num_threads=1, dtype="float64",
    )  # fmt: skip
    commit, ends = RecordStream.commit, []

    def commit_and_signal(stream: RecordStream, step: int) -> None:
        commit(stream, step)
        ends.append(bridge(bridge.store.runs.read()).state)
        if step == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(RecordStream, "commit", commit_and_signal)
    for step, reason in ((1, "before step 2 of 3: told to stop"), (3, "all 3 steps are taken")):
        train(config)
        run = bridge(bridge.store.runs.read())
        assert (run.state, run.ends["main"].step, run.ends["main"].reason) == (RunState.ENDED, step, reason)
    assert ends == [RunState.RUNNING] * 3
    for line in map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()):
        step, _ = line.pop("step"), line.pop("time")
        assert bridge(bridge.store.steps.metrics_of("main", step, run_starts(bridge))) == line, (
            "what it logged is stored"
        )
    (kept,) = bridge(bridge.store.database["settings"].find({"kind": "trainer-main"}).to_list())
    assert (kept["values"], len(kept["workers"])) == (config.snapshot(), 1)
