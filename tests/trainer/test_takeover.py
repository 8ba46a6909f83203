"""A trainer that must not begin changes nothing; what a restart may take back, and what only a person may."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shared.documents import DataClaim
from shared.documents.run import Admission, SavedCheckpoint
from shared.errors import ConfigError, LeaseLost
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.late_commands import Everything, everything
from tests.shared.builders import make_data, make_task
from tests.trainer.builders import tiny_model
from tests.trainer.streams import add_groups, make_config, publish
from tests.trainer.trainer_kills import fill, nursery
from tests.trainer.training_child import MAX_STEPS
from trainer.data.groups import Group, GroupSelector
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.run.saving import SavedSteps
from trainer.run.takeover import startable_run, take_over
from trainer.settings.config import TrainerConfig

RUN = "takeover-test"
ADMISSION = Admission(groups_per_step=2, max_staleness=1)


@pytest.fixture
def bridge(mongod: Mongod) -> Iterator[StoreBridge]:
    with StoreBridge(mongod.connection_string, RUN) as bridge:
        yield bridge
        bridge(bridge.store.client.drop_database(RUN))


def at_step(bridge: StoreBridge, parallel: Parallel, config: TrainerConfig, step: int, *, saved: int | None) -> int:
    """A trainer has begun from step 0, published `step` and saved `saved`; returns its trainer generation."""
    trainer_generation = take_over(bridge, config, parallel, 0)
    add_groups(bridge, range(step))
    selector = GroupSelector(bridge, config)
    for number in range(1, step + 1):
        selector.borrow([Group(f"main:train:0:t{number - 1}", _records(number - 1), 8)], trainer_generation, number)
        claim = DataClaim(trainer_generation=trainer_generation, step=number)
        bridge(bridge.store.data.commit_step("main", claim, max_trained_count=1))
    publish(bridge, range(step + 1))
    SavedSteps(bridge, config, parallel, trainer_generation).note(saved)
    return trainer_generation


def _records(seq: int) -> tuple[str, ...]:
    return tuple(make_data(make_task(seq), k).id for k in range(2))


def documents(bridge: StoreBridge) -> Everything:
    return bridge(everything(bridge.store.database))


def configured(folder: Path, **fields: Any) -> TrainerConfig:
    return make_config(run=RUN, output_dir=folder, **fields)


def test_a_start_below_the_newest_checkpoint_is_refused_and_changes_nothing(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    config = configured(tmp_path / "right")
    at_step(bridge, alone, config, 5, saved=4)
    before = documents(bridge)
    mistyped = configured(tmp_path / "wrong")
    found = (
        rf"begin at step 0, since there is no checkpoint in {tmp_path}/wrong/checkpoints; the run is at step 5 \(version 5\)"
        rf", and its newest checkpoint is step 4 in {tmp_path}/right/checkpoints\. To begin earlier .* train 10 records again"
    )
    with pytest.raises(ConfigError, match=found):
        take_over(bridge, mistyped, alone, 0)
    with pytest.raises(ConfigError, match="begin at step 2, from"):
        take_over(bridge, config, alone, 2)  # the checkpoint of step 4 is gone
    assert documents(bridge) == before


def test_a_start_from_the_newest_checkpoint_takes_back_what_came_after_it(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    config = configured(tmp_path)
    at_step(bridge, alone, config, 5, saved=4)
    assert take_over(bridge, config, alone, 4) == 2
    trained = {d.id: d.trained_steps for d in bridge(bridge.store.data.find({}))}
    assert trained == {rid: [seq + 1] if seq < 4 else [] for seq in range(5) for rid in _records(seq)}


def test_a_start_after_a_kill_before_the_first_checkpoint_begins_again(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    config = configured(tmp_path / "right")
    at_step(bridge, alone, config, 3, saved=None)
    with pytest.raises(ConfigError, match="its newest checkpoint is none that this run knows of"):
        startable_run(bridge, configured(tmp_path / "wrong"), 0)
    assert take_over(bridge, config, alone, 0) == 2


def test_a_person_may_undo_later_steps_by_saying_so(bridge: StoreBridge, alone: Parallel, tmp_path: Path) -> None:
    at_step(bridge, alone, configured(tmp_path), 5, saved=4)
    elsewhere = configured(tmp_path / "elsewhere", undo_later_steps=True)
    assert take_over(bridge, elsewhere, alone, 0) == 2
    assert bridge(bridge.store.data.count_above("main", 0)) == 0
    assert take_over(bridge, configured(tmp_path / "elsewhere"), alone, 0) == 3, "from now on it is the run's own place"


def test_a_take_over_is_refused_if_the_run_changed_since_it_was_read(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    """The trainer that is to be replaced saves in between: the look was of an older run."""
    config = configured(tmp_path)
    trainer_generation = at_step(bridge, alone, config, 5, saved=2)
    seen = startable_run(bridge, config, 2)
    SavedSteps(bridge, config, alone, trainer_generation).note(4)
    late = bridge.store.runs.start_trainer("main", ADMISSION, seen=seen, checkpoint=SavedCheckpoint(step=2, folder="x"))
    with pytest.raises(LeaseLost, match="or saved a checkpoint, at the same time"):
        bridge(late)
    assert bridge(bridge.store.runs.is_current_trainer("main", trainer_generation))
    with pytest.raises(ConfigError, match="its newest checkpoint is step 4"):
        take_over(bridge, config, alone, 2)


def test_a_trainer_that_was_replaced_borrows_announces_and_notes_nothing(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path
) -> None:
    """Between its look and its write everything of the new start has happened."""
    config = configured(tmp_path)
    old = at_step(bridge, alone, config, 3, saved=3)
    add_groups(bridge, range(3, 5))
    versions, data = bridge.store.versions, bridge.store.data
    new = take_over(bridge, config, alone, 3)
    bridge(versions.fence("main", new, 3))
    before = documents(bridge)
    with pytest.raises(LeaseLost, match="another trainer has started"):
        GroupSelector(bridge, config).borrow([Group("t", _records(3), 8)], old, 4)
    with pytest.raises(LeaseLost, match="trainer generation 2 has replaced generation 1; step 4 is not announced"):
        bridge(versions.announce("main", 4, "/late", {}, trainer_generation=old))
    with pytest.raises(LeaseLost, match="another trainer has started"):
        SavedSteps(bridge, config, alone, old).note(4)
    assert documents(bridge) == before
    bridge(data.claim(_records(3), DataClaim(trainer_generation=old, step=4)))  # and dies before it asks
    GroupSelector(bridge, config).borrow([Group("t", _records(3), 8)], new, 4)
    assert {d.claim and d.claim.trainer_generation for d in bridge(data.find({"seq": 3}))} == {new}


@pytest.mark.slow
@pytest.mark.thorough
def test_a_wrong_model_or_output_directory_leaves_a_finished_run_as_it_was(mongod: Mongod, tmp_path: Path) -> None:
    async def all_documents() -> Everything:
        async with Store.open(mongod.connection_string, "finished") as store:
            return await everything(store.database)

    with nursery(mongod.connection_string, tmp_path) as trainers:
        asyncio.run(fill(mongod.connection_string, "finished"))
        assert trainers.train("finished")
        before = asyncio.run(all_documents())
        assert {d["last_trained_step"] for d in before["record_data"]} == set(range(1, MAX_STEPS + 1))
        with pytest.raises(AssertionError, match="this start would begin at step 0, since there is no checkpoint"):
            trainers.train("finished", output_dir=tmp_path / "mistyped")
        assert asyncio.run(all_documents()) == before
        other = tiny_model(dtype=torch.float32)
        with torch.no_grad():
            next(iter(other.parameters())).add_(1.0)
        other.save_pretrained(tmp_path / "model")
        for folder in (None, tmp_path / "mistyped"):
            with pytest.raises(AssertionError, match="start every service of a run from the same weights"):
                trainers.train("finished", output_dir=folder)
            assert asyncio.run(all_documents()) == before


def test_an_old_folder_in_a_new_database_is_continued_but_not_in_silence(
    bridge: StoreBridge, alone: Parallel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path)
    startable_run(bridge, config, 0)
    assert not caplog.records
    startable_run(bridge, config, 3)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert f"this database knows no step of the run, and {config.folder} has the checkpoint of step 3" in record.message
