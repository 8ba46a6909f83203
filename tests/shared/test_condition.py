"""The condition of a run says what became of it, also of one whose processes could not write their end."""

import sys

import pytest

from shared.documents.run import Admission, TrainerEnd, Worker
from shared.documents.states import RunState
from shared.processes.failure import MAX_FAILURE_CHARS, failure_now
from shared.store import Store
from shared.store.condition import Condition, condition_of
from tests.shared.builders import claim, import_tasks

ADMISSION = Admission(groups_per_step=1, max_staleness=0, num_steps=9)


async def heard(store: Store, name: str, kind: str = "trainer", **values: object) -> None:
    await store.workers.heartbeat(Worker(id=name, kind=kind, host="h", pid=1, **values))


async def fall_silent(store: Store) -> None:
    earlier = [{"$set": {"heartbeat": {"$subtract": ["$heartbeat", 3_600_000]}}}]
    await store.database["workers"].update_many({}, earlier)


async def test_a_killed_trainer_has_crashed_whoever_else_is_alive(store: Store) -> None:
    await store.runs.start_trainer("main", ADMISSION)
    await heard(store, "trainer:main:h:1", doing="step 5", stats={"step": 4})
    assert (await condition_of(store)).condition is Condition.RUNNING
    await fall_silent(store)
    await heard(store, "sampler:h:2", "sampler")
    found = await condition_of(store)
    assert found.condition is Condition.CRASHED
    assert found.reason == "the trainer of policy main is not heard of any more, after step 4: it was step 5"
    assert found.since is not None
    await store.runs.start_trainer("main", ADMISSION)
    await heard(store, "trainer:main:h:3", doing="waiting for the data of step 5")
    assert (await condition_of(store)).condition is Condition.RUNNING, "the next start goes on"


async def test_of_several_ranks_the_one_that_failed_says_why(store: Store) -> None:
    await store.runs.start_trainer("main", ADMISSION)
    for rank in range(3):
        await heard(store, f"trainer:main:h:{rank}", stats={"step": 4})
    await store.workers.leave("trainer:main:h:2", "OutOfMemoryError: 80 GB")
    for rank in range(2):
        await store.workers.leave(f"trainer:main:h:{rank}")
    assert (await condition_of(store)).reason.startswith("the trainer of policy main ")
    await store.database["workers"].update_many({}, [{"$set": {"heartbeat": "$$NOW"}}])
    found = await condition_of(store)
    assert found.reason == "the trainer of policy main failed after step 4: OutOfMemoryError: 80 GB"


async def test_a_failed_process_is_not_alive_though_its_heartbeat_is_fresh(store: Store) -> None:
    await heard(store, "a", "sampler", doing="failed")  # says so itself, and is alive
    await heard(store, "b", "sampler")
    await store.workers.leave("b", "ValueError: no")
    assert [worker.id for worker in await store.workers.live()] == ["a"]
    every, live = await store.workers.all_and_live()
    assert (every, live) == (await store.workers.all(), {"a"})


async def test_a_run_whose_processes_have_all_gone_is_abandoned_with_the_last_ones_error(store: Store) -> None:
    await import_tasks(store, 1)
    assert (await condition_of(store)).condition is Condition.UNSTARTED
    await heard(store, "sampler:h:1", "sampler")
    await store.workers.leave("sampler:h:1", "StoreUnavailable: gone")
    found = await condition_of(store)
    assert (found.condition, found.since is not None) == (Condition.ABANDONED, True)
    assert found.reason == "no process is alive; the last was sampler:h:1: failed: StoreUnavailable: gone"


async def test_a_run_whose_processes_were_stopped_before_its_trainer_began_is_stopped(store: Store) -> None:
    await import_tasks(store, 1, split="eval")
    await heard(store, "sampler:h:1", "sampler")
    await heard(store, "keeper:h:2", "keeper")
    await store.workers.leave("sampler:h:1", "EngineUnavailable: played again")
    await store.workers.leave("keeper:h:2")
    found = await condition_of(store)
    assert (found.condition, found.since is not None) == (Condition.STOPPED, True)
    assert found.reason.endswith("the last was keeper:h:2; the command that started them continues the run")
    await store.runs.start_trainer("main", ADMISSION)
    await heard(store, "trainer:main:h:3")
    await store.workers.leave("trainer:main:h:3")
    assert (await condition_of(store)).condition is Condition.STOPPED, "its trainer, before the first step"
    await heard(store, "sampler:h:4", "sampler")
    assert (await condition_of(store)).condition is Condition.CRASHED, "the others wait for a trainer"


async def test_ends_and_pauses_come_before_what_heartbeats_say(store: Store) -> None:
    generation = await store.runs.start_trainer("main", ADMISSION)
    await heard(store, "trainer:main:h:1")
    await fall_silent(store)
    await store.runs.set_state(RunState.PAUSED)
    assert (await condition_of(store)).condition is Condition.PAUSED
    await store.runs.set_state(RunState.RUNNING)
    await store.runs.end_trainer("main", TrainerEnd(trainer_generation=generation, step=9, reason="all are taken"))
    found = await condition_of(store)
    assert (found.condition, found.reason) == (Condition.ENDED, "policy main after step 9: all are taken")
    assert found.since is not None


async def test_evaluated_tasks_without_a_trainer_are_played_not_abandoned(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1, split="eval")
    await heard(store, "sampler:h:1", "sampler")
    await store.tasks.finish_slot(await claim(store, split="eval"), 1.0)
    task = await store.tasks.claim_settlement("s", policy="main", lease_s=60)
    assert task is not None
    await store.tasks.finish_settlement(task, "evaluated", abandoned=False)
    await store.workers.leave("sampler:h:1")
    assert (await condition_of(store)).condition is Condition.PLAYED


def test_the_error_that_ends_a_process_is_told_without_secrets_and_once() -> None:
    told: list[str | None] = []

    def ends_by(exc: BaseException) -> None:
        try:
            raise exc
        finally:
            told.append(failure_now())

    url = "mongodb://ann:hunter2@db:27017"
    for exc in (ValueError(url), ExceptionGroup("all", [ValueError("a"), ValueError("a"), OSError("b")])):
        with pytest.raises(type(exc)):
            ends_by(exc)
    with pytest.raises(KeyboardInterrupt):
        ends_by(KeyboardInterrupt())
    with pytest.raises(ValueError, match="x"):
        ends_by(ValueError("x" * 10_000))
    assert told[0] is not None
    assert "hunter2" not in told[0]
    assert told[1:3] == ["ValueError: a; OSError: b", None]
    assert len(told[3] or "") <= MAX_FAILURE_CHARS
    assert sys.exception() is None
    assert failure_now() is None
