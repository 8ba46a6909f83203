"""Claims, leases, fencing: the invariants that no task is lost and no slot counts twice."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shared.documents import Claim, Feedback
from shared.documents.states import SlotStatus, TaskStatus
from shared.errors import LeaseLost
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import claim, import_tasks, let_time_pass, make_task

T = TypeVar("T")


async def test_every_slot_is_claimed_exactly_once_by_many_workers_at_once(store: Store) -> None:
    await import_tasks(store, 12, num_generations=4)
    seen: list[tuple[str, int]] = []

    async def worker(name: str) -> None:
        while (got := await claim(store, name)) is not None:
            seen.append((got.task.id, got.traj_id))
            await store.tasks.finish_slot(got, 1.0)

    await asyncio.gather(*(worker(f"w{i}") for i in range(16)))
    assert len(seen) == len(set(seen)) == 48
    assert await store.tasks.count_by_status() == {"train": {TaskStatus.COMPLETED: 12}}


async def test_tasks_are_opened_in_order_and_never_beyond_the_admission_limit(store: Store) -> None:
    await import_tasks(store, 5, num_generations=1)
    order = [got.task.seq for _ in range(5) if (got := await claim(store, seq_limit=3)) is not None]
    assert order == [0, 1, 2]


async def test_a_zombie_is_refused_after_its_lease_was_taken_over(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    zombie = await claim(store, "zombie", lease_s=0.0)
    heir = await claim(store, "heir")
    assert (heir.traj_id, heir.attempt) == (zombie.traj_id, zombie.attempt + 1)
    with pytest.raises(LeaseLost):
        await store.tasks.finish_slot(zombie, 9.0)
    with pytest.raises(LeaseLost):
        await store.tasks.retry_slot(zombie, "late", delay_s=0, max_failures=3)
    assert await store.tasks.finish_slot(heir, 1.0)
    task = await store.tasks.get(heir.task.id)
    assert task is not None
    assert [s.score for s in task.slots] == [1.0]


@pytest.mark.parametrize(("max_failures", "state"), [(9, SlotStatus.OPEN), (1, SlotStatus.FAILED)])
async def test_a_zombie_is_refused_although_its_slot_was_not_leased_again(
    store: Store, max_failures: int, state: SlotStatus
) -> None:
    """Two leases expired: the next claim opens both slots again and takes the first, or fails them for good."""
    await import_tasks(store, 1, num_generations=2)
    _, zombie = await claim(store, "zombie"), await claim(store, "zombie")
    await let_time_pass(store)
    await claim(store, "heir", max_failures=max_failures)
    before = await store.tasks.get(zombie.task.id)
    assert before is not None
    assert (before.slots[1].status, before.slots[1].attempt) == (state, zombie.attempt)
    assert await store.tasks.renew_leases([zombie], lease_s=60) == [zombie]
    for ending in (
        store.tasks.finish_slot(zombie, 9.0),
        store.tasks.release_slot(zombie),
        store.tasks.retry_slot(zombie, "late", delay_s=0, max_failures=9),
    ):
        with pytest.raises(LeaseLost):
            await ending
    assert await store.tasks.get(zombie.task.id) == before


async def test_the_last_slot_completes_its_group_in_the_same_update(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    first, second = await claim(store), await claim(store)
    assert not await store.tasks.finish_slot(first, 0.0)
    assert await store.tasks.finish_slot(second, 1.0)
    task = await store.tasks.get(first.task.id)
    assert task is not None
    assert task.status is TaskStatus.COMPLETED
    assert task.completed_at is not None


async def test_an_infrastructure_failure_is_retried_later_and_then_failed_without_a_score(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    first = await claim(store)
    assert not await store.tasks.retry_slot(first, "engine down", delay_s=60, max_failures=2)
    assert await claim(store) is None  # not yet
    await let_time_pass(store)
    second = await claim(store)
    assert await store.tasks.retry_slot(second, "engine down", delay_s=0, max_failures=2)
    task = await store.tasks.get(first.task.id)
    assert task is not None
    assert task.status is TaskStatus.COMPLETED
    assert (task.slots[0].status, task.slots[0].score, task.slots[0].error) == (SlotStatus.FAILED, None, "engine down")


async def test_a_slot_whose_lease_expires_again_and_again_is_failed_and_does_not_block_the_queue(store: Store) -> None:
    await import_tasks(store, 2, num_generations=1)
    for _ in range(3):
        poison = await claim(store, lease_s=0.0, max_failures=3)
        assert poison.task.seq == 0
    other = await claim(store, max_failures=3)
    assert other.task.seq == 1
    task = await store.tasks.get(poison.task.id)
    assert task is not None
    assert task.slots[0].status is SlotStatus.FAILED
    assert "expired" in (task.slots[0].error or "")
    assert task.status is TaskStatus.COMPLETED


async def test_a_released_slot_is_free_at_once_and_counts_no_failure(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    first = await claim(store)
    await store.tasks.release_slot(first)
    again = await claim(store)
    assert again.attempt == first.attempt + 1
    assert again.task.slots[0].failures == 0


async def test_renewal_keeps_a_lease_and_names_those_that_are_lost(store: Store) -> None:
    await import_tasks(store, 2, num_generations=1)
    kept, lost = await claim(store), await claim(store, lease_s=0.0)
    heir = await claim(store, "heir")
    assert heir.task.id == lost.task.id
    await let_time_pass(store)
    assert await store.tasks.renew_leases([kept, lost, heir], lease_s=60) == [lost]
    assert await claim(store, "thief") is None  # renewed, so it cannot be claimed


async def test_a_task_bound_to_a_version_waits_for_an_engine_that_serves_it(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, split="eval", at_version=7)])
    assert await claim(store, split="eval", served_versions=[6]) is None
    assert await claim(store, split="eval", served_versions=[6, 7]) is not None


async def test_a_worker_named_like_a_field_path_is_stored_as_text(store: Store) -> None:
    await import_tasks(store, 1)
    got = await claim(store, "$slots")
    assert got.task.slots[got.traj_id].worker == "$slots"


async def test_importing_twice_inserts_once(store: Store) -> None:
    tasks = [make_task(seq) for seq in range(5)]
    assert await store.tasks.insert_new(tasks) == 5
    assert await store.tasks.insert_new(tasks) == 0


async def test_the_claim_uses_its_index(store: Store) -> None:
    await import_tasks(store, 300, num_generations=1)
    for _ in range(100):
        await store.tasks.finish_slot(await claim(store), 1.0)
    await store.database.command("profile", 2)
    await claim(store)
    await store.database.command("profile", 0)
    entry = await store.database["system.profile"].find_one({"command.findAndModify": "tasks"})
    assert entry is not None
    assert "IXSCAN { policy: 1, split: 1, status: -1, free_at: 1, seq: 1 }" in entry["planSummary"]
    assert entry["docsExamined"] <= 3


async def test_only_one_settler_at_a_time_and_a_dead_one_is_replaced(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    await store.tasks.finish_slot(await claim(store), 1.0)
    assert await store.tasks.claim_settlement("a", policy="main", lease_s=60) is not None
    assert await store.tasks.claim_settlement("b", policy="main", lease_s=60) is None
    await let_time_pass(store)
    task = await store.tasks.claim_settlement("b", policy="main", lease_s=60)
    assert task is not None
    await store.tasks.finish_settlement(task, "ready", abandoned=False)
    first = await store.tasks.get(task.id)
    await store.tasks.finish_settlement(task, "ready", abandoned=False)
    assert await store.tasks.get(task.id) == first
    done = await store.tasks.get(task.id)
    assert done is not None
    assert (done.status, done.scores, done.outcome) == (TaskStatus.SETTLED, [1.0], "ready")


class Slots(RuleBasedStateMachine):
    """A model of the slots next to the real store: current claims, lost leases, finished slots."""

    connection_string = ""  # set by the test

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.context = Store.open(self.connection_string, "state-machine")
        self.store = self.do(self.context.__aenter__())
        self.do(self.store.database["tasks"].delete_many({}))
        self.do(import_tasks(self.store, 2, num_generations=2))
        self.held: list[Claim] = []
        self.lost: list[Claim] = []
        self.ended: list[Claim] = []
        self.finished: set[tuple[str, int]] = set()
        self.waiting: dict[tuple[str, int], Claim] = {}

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """A bridge: hypothesis is not async."""
        return self.loop.run_until_complete(work)

    @rule(expire=st.booleans())
    def claim(self, expire: bool) -> None:
        got = self.do(claim(self.store, lease_s=0.0 if expire else 60.0, max_failures=1000))
        if got is None:
            return
        key = (got.task.id, got.traj_id)
        assert key not in self.finished
        assert key not in self.waiting
        overtaken = [c for c in self.held if (c.task.id, c.traj_id) == key]
        self.lost += overtaken
        self.held = [c for c in self.held if c not in overtaken] + [got]

    @rule(data=st.data(), how=st.sampled_from(["finish", "retry", "release", "wait", "wait"]))
    def end(self, data: st.DataObject, how: str) -> None:
        if not self.held:
            return
        got = data.draw(st.sampled_from(self.held))
        self.held.remove(got)
        # Its lease may have expired, and a look at the task reopened it: then nothing may have changed.
        with contextlib.suppress(LeaseLost):
            self.do(self.end_one(got, how))
        self.ended.append(got)

    async def end_one(self, got: Claim, how: str) -> None:
        tasks = self.store.tasks
        if how == "finish":
            await tasks.finish_slot(got, 1.0)
            self.finished.add((got.task.id, got.traj_id))
        elif how == "retry":
            await tasks.retry_slot(got, "x", delay_s=0, max_failures=1000)
        elif how == "wait":
            await tasks.await_feedback(got, 3600, score_without=1.0)
            self.waiting[got.task.id, got.traj_id] = got
        else:
            await tasks.release_slot(got)

    @rule(data=st.data(), by=st.sampled_from(["feedback", "feedback", "deadline"]))
    def end_waiting(self, data: st.DataObject, by: str) -> None:
        """By feedback, given twice; or all by their deadline."""
        if not self.waiting:
            return
        if by == "deadline":
            self.do(let_time_pass(self.store))
            while self.do(self.store.feedback.end_overdue("main")) is not None:
                pass
            self.finished |= self.waiting.keys()
            self.waiting.clear()
            return
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        got = self.waiting.pop(key)
        assert self.do(self.store.feedback.give(got.record_id, Feedback(score=1.0))) is not None
        assert self.do(self.store.feedback.give(got.record_id, Feedback(score=2.0))) is None
        self.finished.add(key)

    @rule(data=st.data())
    def zombie(self, data: st.DataObject) -> None:
        """A claim that lost its slot is refused; one that ended it may repeat the write. Neither changes anything."""
        if not self.lost:
            return
        got = data.draw(st.sampled_from(self.lost))
        before = self.documents()
        attempts = {(d["_id"], s["traj_id"]): s["attempt"] for d in before for s in d["slots"]}
        overtaken = attempts[got.task.id, got.traj_id] > got.attempt
        with pytest.raises(LeaseLost) if overtaken else contextlib.suppress(LeaseLost):
            self.do(self.store.tasks.finish_slot(got, 9.0))
        assert self.documents() == before

    def documents(self) -> list[dict[str, Any]]:
        return self.do(self.store.database["tasks"].find().sort("_id", 1).to_list())

    @invariant()
    def scored_slots_are_the_finished_ones(self) -> None:
        documents = self.do(self.store.database["tasks"].find().to_list())
        scores = {
            (d["_id"], s["traj_id"]): s["score"] for d in documents for s in d["slots"] if s["status"] == "scored"
        }
        assert scores == dict.fromkeys(self.finished, 1.0)
        waiting = {(d["_id"], s["traj_id"]) for d in documents for s in d["slots"] if s["status"] == "waiting"}
        assert waiting == self.waiting.keys()
        for d in documents:
            done = all(s["status"] in ("scored", "failed") for s in d["slots"])
            assert done == (d["status"] == "completed")

    def teardown(self) -> None:
        self.do(self.context.__aexit__(None, None, None))
        self.loop.close()


def test_no_sequence_of_verbs_loses_a_slot_or_counts_one_twice(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slots, "connection_string", mongod.connection_string)
    run = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Slots, settings=run)


async def test_ending_a_slot_again_changes_nothing_and_is_no_lost_lease(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    got = await claim(store)
    assert not await store.tasks.finish_slot(got, 1.0)
    assert not await store.tasks.finish_slot(got, 1.0)  # the answer to the first was lost on the way
    task = await store.tasks.get(got.task.id)
    assert task is not None
    assert [s.score for s in task.slots] == [1.0, None]


async def test_infrastructure_failures_are_counted_over_the_whole_run(store: Store) -> None:
    assert await store.tasks.count_failures() == (0, 0)
    await import_tasks(store, 2)
    for max_failures in (9, 1, 9):
        await store.tasks.retry_slot(await claim(store), "engine down", delay_s=60, max_failures=max_failures)
    assert await store.tasks.count_failures() == (3, 1)
    await import_tasks(store, 1, split="fork")
    await store.tasks.retry_slot(await claim(store, split="fork"), "other tools", delay_s=60, max_failures=1)
    assert await store.tasks.count_failures() == (3, 1), "a question to the run is none of its failures"
