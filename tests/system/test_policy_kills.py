"""Kill one policy's trainer and one sampler of a run of two policies: each policy's own data is trained exactly once."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from shared.documents import record_id, task_id
from shared.documents.states import RecordStatus, SlotStatus
from shared.store import Store
from shared.tasks.files import ImportTarget, import_task_file
from tandem.audit.run import audit
from tests.system.debate import JUDGE, OWNER, Round
from tests.system.processes import MODEL, Run, part
from tests.system.test_kills import nothing_open

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS, GROUPS_PER_STEP, SAVED = 4, 2, 2
FIRST = 3 * GROUPS_PER_STEP + 1  # tasks: one to spare, not enough for another step
HELD = task_id(OWNER, "train", 0, "t0")


async def queue(run: Run, hold: Path, numbers: range) -> None:
    """Tasks by number; an episode of the first one waits while `hold` is there."""
    path = run.folder / f"tasks{numbers.start}.jsonl"
    lines = [{"id": f"t{n}", "query": "?", "metadata": {} if n else {"hold": str(hold)}} for n in numbers]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with Store.open(run.mongod.connection_string, run.name) as store:
        await import_task_file(store, path, ImportTarget(policy=OWNER, num_generations=4, payload_model=Round))


async def holder(store: Store) -> str | None:
    """The sampler whose episode waits, both policies having answered in it."""
    task = await store.tasks.get(HELD)
    assert task is not None
    slot = task.slots[0]
    name = record_id(HELD, 0, slot.attempt)
    turns = (await store.records.dispatches_of([name])).get(name, [])
    return slot.worker if slot.status is SlotStatus.LEASED and len(turns) == 2 else None


async def both_at(store: Store, step: int) -> bool:
    versions = [await store.versions.newest(policy) for policy in (OWNER, JUDGE)]
    return all(version is not None and version.step >= step for version in versions)


@pytest.mark.thorough
async def test_each_policy_trains_its_own_data_once_although_a_sampler_and_a_trainer_are_killed(tmp_path: Path) -> None:
    """Tasks for three of the four steps are there at first: the trainer dies behind its checkpoint, and before its end."""
    hold = tmp_path / "hold"
    hold.touch()
    with Run(tmp_path, groups_per_step=GROUPS_PER_STEP, max_steps=STEPS, max_staleness=STEPS) as run:
        run.trainer_flags |= {"save_steps": str(SAVED)}
        del run.sampler_flags["mcp_manager_url"]
        run.sampler_flags |= {"sampler": "tests.system.debate:Debate", "max_new_tokens": "4"}
        run.sampler_flags["other_policies"] = json.dumps({JUDGE: str(MODEL)})
        await queue(run, hold, range(FIRST))
        for policy in (OWNER, JUDGE):
            run.start_trainer(policy=policy)
            run.start_keeper(policy)
        for name in ("sampler0", "sampler1"):
            run.start_sampler(name, OWNER)
        killed = await kill_holder(run)
        hold.unlink()
        await run.until("step 3 of both", lambda store: both_at(store, 3))
        checkpoint = tmp_path / "out" / JUDGE / "checkpoints" / f"step-{SAVED:06d}"
        await run.until("the judge's checkpoint", lambda _: asyncio.to_thread(checkpoint.exists))
        run.end(part("trainer", JUDGE), signal.SIGKILL)
        await queue(run, hold, range(FIRST, 2 * FIRST))
        run.start_trainer(policy=JUDGE)
        for policy in (OWNER, JUDGE):
            assert run.wait(part("trainer", policy)) == 0, run.log(part("trainer", policy))
        await run.until("every opened task to be settled", nothing_open)
        (left,) = {"sampler0", "sampler1"} - {killed}
        assert run.end(left) == 0, run.log(left)
        assert f"at step {SAVED}" in run.log(part("trainer", JUDGE))
        async with Store.open(run.mongod.connection_string, run.name) as store:
            report = await audit(store)
            assert report.ok, report
            await assert_the_killed_episode_was_played_again(store)
            for policy in (OWNER, JUDGE):
                await assert_trained_once(store, policy)


async def kill_holder(run: Run) -> str:
    """The sampler in the middle of the episode that waits; returns its part."""
    async with Store.open(run.mongod.connection_string, run.name) as store:
        found: list[str] = []

        async def holds(_: Store) -> bool:
            found[:] = [worker] if (worker := await holder(store)) else []
            return bool(found)

        await run.until("an episode that waits after a turn of each policy", holds)
    names = {f"{process.pid}": name for name, process in run.processes.items()}
    name = names[found[0].rpartition(":")[2]]
    run.end(name, signal.SIGKILL)
    return name


async def assert_the_killed_episode_was_played_again(store: Store) -> None:
    task = await store.tasks.get(HELD)
    assert task is not None
    slot = task.slots[0]
    assert (slot.status, slot.attempt > 1) == (SlotStatus.SCORED, True)
    first = await store.records.get(record_id(HELD, 0, 1))
    assert first is not None
    assert first.status is RecordStatus.ABANDONED
    assert {data.record for data in await store.data.find({"task": HELD})} >= {slot.record_id}
    assert not await store.data.find({"record": first.id})


async def assert_trained_once(store: Store, policy: str) -> None:
    """Every step took its groups, whole, nothing counts twice, and all tokens of it are the policy's own."""
    used = await store.data.find({"policy": policy, "trained_count": {"$gt": 0}})
    assert {data.trained_count for data in used} == {1}
    groups = {step: {data.task for data in used if data.trained_steps == [step]} for step in range(1, STEPS + 1)}
    assert {step: len(tasks) for step, tasks in groups.items()} == dict.fromkeys(groups, GROUPS_PER_STEP)
    for name in set().union(*groups.values()):
        task = await store.tasks.get(name)
        assert task is not None
        scored = {slot.record_id for slot in task.slots if slot.status is SlotStatus.SCORED}
        assert {data.record for data in used if data.task == name} == scored
    for data in used:
        turns = {turn.id: turn for turn in (await store.records.dispatches_of([data.record]))[data.record]}
        assert {turns[d.id].policy for d in data.dispatches} == {policy}
    surviving = [v.step for v in await store.versions.all(policy) if v.withdrawn_to is None]
    assert sorted(set(surviving)) == list(range(STEPS + 1))
