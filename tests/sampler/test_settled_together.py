"""Groups that a process completes are settled together: one claim, shared commands, and nothing of it is another's."""

import asyncio
from typing import Any

from pymongo import AsyncMongoClient

from sampler.core.service.settling import LEFT_S, Settling
from sampler.core.settlement.current_rules import CurrentRules
from shared.documents import Task
from shared.documents.states import RecordStatus, TaskStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.builders import play_episode
from tests.sampler.scored_groups import config
from tests.shared.builders import claim, import_tasks, let_time_pass
from tests.shared.test_batched_verbs import Commands


async def completed(store: Store, groups: int) -> list[str]:
    await import_tasks(store, groups, num_generations=2)
    for _ in range(groups):
        for score in (0.0, 1.0):
            await play_episode(store, await claim(store), score)
    return [f"main:train:0:t{k}" for k in range(groups)]


async def settling_of(store: Store) -> Settling:
    settings = config(store, default_scorers=[])
    rules = CurrentRules(store, settings, "w")
    await rules.begin()
    return Settling(store, "w", settings, rules, None)


async def held_by(store: Store, worker: str, ids: list[str], lease_s: float = 60.0) -> list[str]:
    tasks = await store.settlements.claim(ids, worker, policy="main", lease_s=lease_s)
    return sorted(task.id for task in tasks)


async def test_of_settlers_that_claim_the_same_groups_at_once_each_has_its_own(store: Store) -> None:
    ids = await completed(store, 6)
    claims = await asyncio.gather(*(held_by(store, f"w{k}", ids) for k in range(4)))
    assert sorted(name for each in claims for name in each) == ids


async def test_a_claim_whose_answer_was_lost_finds_its_groups_again_and_no_other_does(store: Store) -> None:
    ids = await completed(store, 3)
    assert await held_by(store, "a", ids) == ids
    assert await held_by(store, "a", ids) == ids
    assert await held_by(store, "b", ids) == []
    await let_time_pass(store)
    assert await held_by(store, "b", ids[:2]) == ids[:2]
    assert await held_by(store, "a", ids) == ids[2:]


async def test_a_group_is_claimed_only_when_it_is_complete(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    await play_episode(store, await claim(store), 1.0)
    assert await held_by(store, "a", ["main:train:0:t0"]) == []


async def test_a_process_does_not_claim_what_another_has_just_completed(store: Store) -> None:
    ids = await completed(store, 2)
    settling = await settling_of(store)
    settling.complete(ids[0])
    await settling.settle_all(others_s=1000 * LEFT_S)
    assert await statuses(store, ids) == [TaskStatus.SETTLED, TaskStatus.COMPLETED]
    await settling.settle_all(others_s=None)
    assert await statuses(store, ids) == [TaskStatus.SETTLED, TaskStatus.COMPLETED]
    await settling.settle_all()
    assert await statuses(store, ids) == [TaskStatus.SETTLED] * 2
    assert settling.settled == 2


async def test_groups_of_one_round_share_their_commands(mongod: Mongod, store: Store) -> None:
    ids = await completed(store, 8)
    counted = Commands()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[counted])
    async with client:
        other = Store(client, store.run)
        settling = await settling_of(other)
        task = await other.tasks.get(ids[0])
        assert task is not None
        await other.rules.of_task(task)
        counted.counts.clear()
        for name in ids:
            settling.complete(name)
        await settling.settle_all(others_s=None)
        await other.signals.close()
    assert await statuses(store, ids) == [TaskStatus.SETTLED] * 8
    assert not counted.counts["find run_rules"], "a number is read once"
    commands = sum(number for name, number in counted.counts.items() if name.startswith(("find ", "update ")))
    assert commands <= 40, f"of nine a group: {counted.counts}"
    data = await store.data.find({})
    assert sorted(one.record for one in data) == sorted(f"{name}:{k}:1" for name in ids for k in range(2))


async def test_the_record_of_a_lost_attempt_is_abandoned_with_its_group(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    lost = await claim(store, "dies", lease_s=0.0)
    await store.records.start(lost, "dies")
    for score in (0.0, 1.0):
        await play_episode(store, await claim(store), score)
    settling = await settling_of(store)
    settling.complete(lost.task.id)
    await settling.settle_all(others_s=None)
    record = await store.records.get(lost.record_id)
    assert record is not None
    assert record.status is RecordStatus.ABANDONED


async def statuses(store: Store, ids: list[str]) -> list[TaskStatus]:
    tasks: list[Task | None] = [await store.tasks.get(name) for name in ids]
    return [task.status for task in tasks if task is not None]
