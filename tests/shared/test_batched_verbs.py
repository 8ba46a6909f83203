"""Verbs whose callers share a command: each caller has its own answer, and its own refusal."""

import asyncio
from collections import Counter
from typing import Any

from pymongo import AsyncMongoClient, monitoring

from shared.documents import Claim
from shared.documents.states import RecordStatus, SlotStatus
from shared.errors import IllegalMove, LeaseLost
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import claim, import_tasks, let_time_pass
from tests.shared.episodes import make_dispatches

CLAIMING: dict[str, Any] = {"policy": "main", "split": "train", "lease_s": 60.0, "seq_limit": None, "max_failures": 8}


async def claims(store: Store, most: int, worker: str = "w") -> list[Claim]:
    return await store.tasks.claim_slots(worker, **CLAIMING, most=most)


class Commands(monitoring.CommandListener):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.counts[f"{event.command_name} {event.command[event.command_name]}"] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


# ---------------------------------------------------------------------- claims


async def test_a_claim_of_several_slots_leases_those_of_one_group(store: Store) -> None:
    await import_tasks(store, 2, num_generations=8)
    first, rest, other = await claims(store, 3), await claims(store, 100), await claims(store, 1)
    assert [(one.task.seq, one.traj_id, one.attempt) for one in first] == [(0, k, 1) for k in range(3)]
    assert [(one.task.seq, one.traj_id) for one in rest] == [(0, k) for k in range(3, 8)]
    assert [(one.task.seq, one.traj_id) for one in other] == [(1, 0)]
    assert len({one.record_id for one in [*first, *rest, *other]}) == 9


async def test_of_many_workers_that_claim_several_at_once_each_has_its_own(store: Store) -> None:
    await import_tasks(store, 12, num_generations=5)

    async def work(name: str) -> list[str]:
        taken: list[str] = []
        while got := await claims(store, 3, name):
            assert {one.task.slots[one.traj_id].worker for one in got} == {name}
            taken += [one.record_id for one in got]
        return taken

    taken = await asyncio.gather(*(work(f"w{k}") for k in range(8)))
    assert sorted(name for each in taken for name in each) == sorted(
        f"main:train:0:t{seq}:{k}:1" for seq in range(12) for k in range(5)
    )


async def test_a_slot_that_was_given_back_comes_before_a_new_group(store: Store) -> None:
    await import_tasks(store, 2, num_generations=2)
    one, two = await claims(store, 2)
    await store.tasks.release_slot(one)
    await store.tasks.retry_slot(two, "engine down", delay_s=0, max_failures=3)
    again = await claims(store, 8)
    assert [(each.task.seq, each.traj_id, each.attempt) for each in again] == [(0, 0, 2), (0, 1, 2)]


async def test_a_claim_of_one_leaves_no_list_that_earlier_versions_refuse(store: Store) -> None:
    await import_tasks(store, 1, num_generations=4)
    assert len(await claims(store, 3)) == 3
    assert len(await claims(store, 1)) == 1
    document = await store.database["tasks"].find_one({})
    assert document is not None
    assert (document["last_claimed"], document.get("last_claims")) == (3, None)


async def test_with_only_exhausted_slots_the_next_task_is_claimed(store: Store) -> None:
    await import_tasks(store, 2, num_generations=2)
    assert len(await claims(store, 2)) == 2
    await let_time_pass(store)
    got = await store.tasks.claim_slots("heir", **(CLAIMING | {"max_failures": 1}), most=2)
    assert [one.task.seq for one in got] == [1, 1]
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    assert [slot.status for slot in task.slots] == [SlotStatus.FAILED] * 2


# ---------------------------------------------------------------------- ends


async def test_of_slots_that_are_finished_together_the_one_without_its_lease_is_refused(store: Store) -> None:
    await import_tasks(store, 1, num_generations=4)
    mine = await claims(store, 4)
    await store.database["tasks"].update_one({}, {"$inc": {"slots.2.attempt": 1}})  # another worker has it
    first = asyncio.create_task(store.tasks.finish_slot(mine[0], 0.0))  # the others come while it is written
    await asyncio.sleep(0)
    rest = await asyncio.gather(*(store.tasks.finish_slot(one, 1.0) for one in mine[1:]), return_exceptions=True)
    assert [type(each) for each in [await first, *rest]] == [bool, bool, LeaseLost, bool]
    task = await store.tasks.get(mine[0].task.id)
    assert task is not None
    assert [slot.score for slot in task.slots] == [0.0, 1.0, None, 1.0]


async def test_whoever_finishes_a_group_knows_it(store: Store) -> None:
    await import_tasks(store, 2, num_generations=4)
    held = [*await claims(store, 4), *(await claims(store, 4))[:3]]
    answers = await asyncio.gather(*(store.tasks.finish_slot(one, 1.0) for one in held))
    assert any(answers[:4])
    assert not any(answers[4:]), "a slot of this group is open"


async def test_of_records_that_move_together_only_the_illegal_one_is_refused(store: Store) -> None:
    await import_tasks(store, 1, num_generations=3)
    held = await claims(store, 3)
    await asyncio.gather(*(store.records.start(one, "w") for one in held))
    await store.records.move(held[1].record_id, RecordStatus.ABANDONED, {"error": "its lease was lost"})
    moves = [store.records.move(one.record_id, RecordStatus.SCORED, {"score": float(one.traj_id)}) for one in held]
    assert [type(each) for each in await asyncio.gather(*moves, return_exceptions=True)] == [bool, IllegalMove, bool]
    records = await store.records.get_many([one.record_id for one in held])
    assert [(records[one.record_id].status, records[one.record_id].score) for one in held] == [
        (RecordStatus.SCORED, 0.0),
        (RecordStatus.ABANDONED, None),
        (RecordStatus.SCORED, 2.0),
    ]


async def test_many_episodes_of_a_process_share_their_commands(mongod: Mongod, store: Store) -> None:
    await import_tasks(store, 4, num_generations=8)
    held = [one for _ in range(4) for one in await claims(store, 8)]
    counted = Commands()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[counted])
    async with client:
        other = Store(client, store.run)
        await asyncio.gather(*(_play(other, one) for one in held))
        await other.signals.close()
    assert len(held) == 32
    updates = {name: number for name, number in counted.counts.items() if name.startswith("update ")}
    assert sum(updates.values()) <= 16, "of 4 updates an episode"


async def _play(store: Store, one: Claim) -> None:
    await store.records.start(one, "w")
    (dispatch, *_) = make_dispatches(one.record_id)
    await store.records.open_dispatch(dispatch)
    await store.records.move(one.record_id, RecordStatus.SCORED, {"score": 1.0})
    await store.tasks.finish_slot(one, 1.0)


async def test_leases_are_checked_with_one_question_where_one_was_lost(store: Store) -> None:
    await import_tasks(store, 3, num_generations=2)
    held = [one for _ in range(3) for one in await claims(store, 2)]
    await store.tasks.finish_slot(held[3], 1.0)
    assert await store.tasks.renew_leases(held, 60) == [held[3]]
    assert await claim(store) is None
