"""Feedback that comes after an episode's end: it scores the episode that waits for it, once, before its deadline."""

import asyncio
from typing import Any

import pytest

from shared.documents import Feedback, Record, Slot, Task
from shared.documents.states import RecordStatus, SlotStatus, TaskStatus
from shared.episodes.feedback import give_feedback
from shared.errors import FeedbackRefused, LeaseLost
from shared.store import Store
from shared.store.pipelines import EPOCH
from tandem.audit.run import Check, audit
from tests.late_commands import everything
from tests.shared.builders import claim, import_tasks, let_time_pass, make_task
from tests.shared.episodes import play, play_and_wait

TASK = "main:train:0:t0"


async def waiting(store: Store, score_without: float | None = None, **kwargs: Any) -> str:
    """A group of one episode, which waits."""
    await import_tasks(store, 1, num_generations=1)
    return await play_and_wait(store, await claim(store), score_without, **kwargs)


async def found(store: Store, record_id: str) -> tuple[Task, Slot, Record]:
    record = await store.records.get(record_id)
    assert record is not None
    task = await store.tasks.get(record.task)
    assert task is not None
    return task, task.slots[record.traj_id], record


async def test_an_episode_that_waits_holds_no_lease_and_is_not_played_again(store: Store) -> None:
    record_id = await waiting(store)
    task, slot, record = await found(store, record_id)
    assert (task.status, slot.status, record.status) == (TaskStatus.RUNNING, SlotStatus.WAITING, RecordStatus.COMPLETED)
    assert (slot.record_id, slot.score, record.score) == (record_id, None, None)
    assert task.waiting_until == slot.free_at
    assert await claim(store) is None
    await let_time_pass(store)  # a lease would be over
    assert await claim(store) is None
    assert await store.tasks.claim_settlement("s", policy="main", lease_s=60) is None


async def test_feedback_scores_the_episode_and_is_kept_with_its_comment_and_source(store: Store) -> None:
    record_id = await waiting(store, 0.5)
    before = (await found(store, record_id))[2]
    await give_feedback(store, record_id, 0.25, turn=1, comment="a good start")
    given = await give_feedback(store, record_id, 1, comment="$solved", source="ann")
    assert (given.again, given.episodes) == (False, {"scored": 1})
    task, slot, record = await found(store, record_id)
    assert (task.status, task.waiting_until) == (TaskStatus.COMPLETED, None)
    assert (slot.status, slot.score, record.status, record.score) == (SlotStatus.SCORED, 1.0, RecordStatus.SCORED, 1.0)
    assert record.reward_details["scorer"] == "feedback"
    told = [(f["turn"], f["score"], f["comment"], f["source"]) for f in record.reward_details["feedback"]]
    assert told == [(1, 0.25, "a good start", None), (None, 1.0, "$solved", "ann")]
    assert record.finished_at == before.finished_at, "the episode's duration does not contain the wait"
    dispatches = (await store.records.dispatches_of([record_id]))[record_id]
    assert [d.score for d in dispatches] == [None, 0.25, None]
    assert (await store.tasks.claim_settlement("s", policy="main", lease_s=60)) is not None


async def test_feedback_that_is_given_again_changes_nothing_and_another_score_is_refused(store: Store) -> None:
    record_id = await waiting(store)
    for turn in (0, None):
        assert not (await give_feedback(store, record_id, 1.0, turn=turn)).again
        before = await everything(store.database)
        assert (await give_feedback(store, record_id, 1.0, turn=turn, comment="again")).again
        with pytest.raises(FeedbackRefused, match=r"has score 1, given at .* is not changed \(found 0\)") as refused:
            await give_feedback(store, record_id, 0.0, turn=turn)
        assert refused.value.why == "scored"
        assert await everything(store.database) == before
    with pytest.raises(FeedbackRefused, match=r"turn 2 of .*: the episode was scored 1.0 by feedback"):
        await give_feedback(store, record_id, 1.0, turn=2)


async def test_feedback_at_the_same_time_counts_once(store: Store) -> None:
    record_id = await waiting(store)
    calls = [give_feedback(store, record_id, float(k % 2)) for k in range(8)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    taken = [r for r in results if not isinstance(r, BaseException)]
    assert len(taken) == 4
    assert sum(not r.again for r in taken) == 1
    _, slot, record = await found(store, record_id)
    assert len(slot.feedback) == 1
    assert slot.score == record.score == taken[0].score


@pytest.mark.parametrize(("without", "status"), [(0.5, SlotStatus.SCORED), (None, SlotStatus.FAILED)])
async def test_at_the_deadline_the_episode_gets_the_scorers_score_or_fails(
    store: Store, without: float | None, status: SlotStatus
) -> None:
    record_id = await waiting(store, without)
    assert await store.feedback.end_overdue("main") is None
    await let_time_pass(store)
    with pytest.raises(FeedbackRefused, match="the deadline for feedback was") as refused:
        await give_feedback(store, record_id, 1.0)
    assert refused.value.why == "late"
    assert await store.feedback.end_overdue("other") is None
    task = await store.feedback.end_overdue("main")
    assert task is not None
    await store.feedback.write_scores(task)
    assert await store.feedback.end_overdue("main") is None
    task, slot, record = await found(store, record_id)
    assert (task.status, slot.status, slot.score) == (TaskStatus.COMPLETED, status, without)
    if without is None:
        assert (record.status, record.score, record.reason) == (RecordStatus.ABANDONED, None, slot.error)
    else:
        assert (record.status, record.score) == (RecordStatus.SCORED, without)
        assert record.reward_details == {"scorer": "math", "feedback_missing": "no feedback came before the deadline"}
    with pytest.raises(FeedbackRefused) as refused:
        await give_feedback(store, record_id, 1.0)
    assert refused.value.why == "late"


async def test_feedback_and_the_deadline_at_once_end_the_episode_once(store: Store) -> None:
    """One update wins; the records agree with it."""
    await import_tasks(store, 20, num_generations=1)
    records = [await play_and_wait(store, await claim(store), 0.5, deadline_s=1.5) for _ in range(20)]

    async def overdue() -> None:
        while (await store.feedback.waiting(1)) != []:
            task = await store.feedback.end_overdue("main")
            if task is not None:
                await store.feedback.write_scores(task)

    async def give(record: str, after_s: float) -> bool:
        await asyncio.sleep(after_s)
        try:
            return not (await give_feedback(store, record, 1.0)).again
        except FeedbackRefused as exc:
            assert exc.why == "late"  # noqa: PT017
            return False

    results = await asyncio.gather(overdue(), *(give(rid, 0.1 * k) for k, rid in enumerate(records)))
    for rid, taken in zip(records, results[1:], strict=True):
        _, slot, record = await found(store, rid)
        assert (slot.score, record.score, record.status) == (*[1.0 if taken else 0.5] * 2, RecordStatus.SCORED)


async def test_a_process_that_dies_between_the_slot_and_its_record_costs_nothing(store: Store) -> None:
    """The record follows when the feedback is given again, or at the settlement."""
    record_id = await waiting(store)
    assert await store.feedback.give(record_id, Feedback(score=1.0)) is not None  # and the process is killed
    assert (await found(store, record_id))[2].status is RecordStatus.COMPLETED
    report = await audit(store, running=True)
    assert report.ok, report
    assert (await give_feedback(store, record_id, 1.0)).again
    assert (await found(store, record_id))[2].status is RecordStatus.SCORED


@pytest.mark.parametrize("case", ["unknown", "playing", "scored", "failed", "lost"])
async def test_feedback_for_an_episode_that_does_not_wait_is_refused_with_what_was_found(
    store: Store, case: str
) -> None:
    await import_tasks(store, 1, num_generations=1)
    got = await claim(store)
    record_id, why = got.record_id, case
    await store.records.start(got, "w")
    if case == "unknown":
        record_id, words = "main:train:0:t9:0:1", "no record is called 'main:train:0:t9:0:1'; `tandem feedback"
    elif case == "playing":
        words = "is still played; give its score when it has ended"
    elif case == "scored":
        await play(store, got, 0.5)
        words = "was scored 0.5 at its end; feedback_deadline_s"
    elif case == "failed":
        await store.tasks.retry_slot(got, "engine down", delay_s=0, max_failures=1)
        words = "failed: engine down"
    else:
        await let_time_pass(store)
        again = await claim(store)
        await play_and_wait(store, again)
        why, words = "failed", "its slot's current attempt is 2, its own is 1"
    before = await everything(store.database)
    with pytest.raises(FeedbackRefused, match=words) as refused:
        await give_feedback(store, record_id, 1.0)
    assert refused.value.why == why
    assert await everything(store.database) == before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"score": float("nan")}, "score is nan"),
        ({"score": float("inf")}, "score is inf"),
        ({"score": "1"}, "score is '1'"),
        ({"score": True}, "score is True"),
        ({"score": 1.0, "turn": 3}, "no turn 3; expected one of its turns 0 to 2"),
        ({"score": 1.0, "turn": -1}, "turn is -1"),
        ({"score": 1.0, "comment": "x" * 2001}, "comment is 'x"),
    ],
)
async def test_feedback_that_is_no_finite_number_or_of_no_turn_is_refused(
    store: Store, fields: dict[str, Any], words: str
) -> None:
    record_id = await waiting(store)
    before = await everything(store.database)
    with pytest.raises(FeedbackRefused, match=words) as refused:
        await give_feedback(store, record_id, **fields)
    assert refused.value.why == "invalid"
    assert await everything(store.database) == before


async def test_what_waits_is_listed_by_its_deadline(store: Store) -> None:
    await import_tasks(store, 3, num_generations=1)
    records = [await play_and_wait(store, await claim(store), 0.5, deadline_s=s) for s in (300, 100, 200)]
    await give_feedback(store, records[2], 0.25, turn=0)
    listed = await store.feedback.waiting(10)
    assert [episode.record for episode in listed] == [records[1], records[2], records[0]]
    assert [len(episode.feedback) for episode in listed] == [0, 1, 0]
    assert [episode.record for episode in await store.feedback.waiting(1)] == [records[1]]
    assert (await store.outlook.of_run()).awaiting_feedback == 3


async def test_a_group_waits_for_its_last_episode_and_others_may_be_played_meanwhile(store: Store) -> None:
    await import_tasks(store, 1, num_generations=3)
    first, second = await claim(store), await claim(store)
    record_id = await play_and_wait(store, first)
    await play(store, second, 0.0)
    third = await claim(store)
    assert third.traj_id == 2
    assert (await give_feedback(store, record_id, 1.0)).episodes == {"scored": 2, "leased": 1}
    await play(store, third, 0.0)
    assert (await store.tasks.get(TASK)).status is TaskStatus.COMPLETED  # type: ignore[union-attr]  # it is there


async def test_a_worker_that_lost_its_slot_cannot_let_it_wait(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    lost = await claim(store, lease_s=0.0)
    again = await claim(store)
    with pytest.raises(LeaseLost):
        await store.tasks.await_feedback(lost, 60, score_without=1.0)
    assert not await store.tasks.await_feedback(again, 60, score_without=1.0)
    assert not await store.tasks.await_feedback(again, 60, score_without=1.0)  # its acknowledgement was lost
    assert await store.tasks.is_played_by(again)
    assert not await store.tasks.is_played_by(lost)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (("tasks", {"slots.0.score": 1.0}), Check.WAITING),
        (("records", {"status": "scored", "score": 1.0}), Check.RECORDS),
        (("tasks", {"slots.0.attempt": 2}), Check.RECORDS),
        (("tasks", {"slots.0.free_at": EPOCH}), Check.WAITING),
    ],
    ids=["a score", "a scored record", "another attempt", "a deadline that is over"],
)
async def test_the_audit_sees_what_is_wrong_with_an_episode_that_waits(
    store: Store, change: tuple[str, dict[str, Any]], check: Check
) -> None:
    await waiting(store, 0.5)
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.WAITING].examined == 1
    collection, values = change
    await store.database[collection].update_one({}, {"$set": values})
    wrong = {check for check, result in (await audit(store)).results.items() if result.violations}
    assert wrong == {check}


async def test_an_overdue_task_is_found_by_an_index_that_holds_only_tasks_that_wait(store: Store) -> None:
    await import_tasks(store, 300, num_generations=1)
    for k in range(100):
        got = await claim(store)
        await (play_and_wait(store, got) if k % 10 == 0 else store.tasks.finish_slot(got, 1.0))
    await store.database.command("profile", 2)
    assert await store.feedback.end_overdue("main") is None
    await store.database.command("profile", 0)
    entry = await store.database["system.profile"].find_one({"command.findAndModify": "tasks"})
    assert entry is not None
    assert "IXSCAN { waiting_until: 1, policy: 1" in entry["planSummary"]
    assert entry["docsExamined"] == 0


async def two_that_wait(store: Store, *deadlines_s: float) -> list[str]:
    await import_tasks(store, 1, num_generations=2)
    return [await play_and_wait(store, await claim(store), 0.5, deadline_s=s) for s in deadlines_s]


async def test_feedback_scores_no_other_episode_of_its_group(store: Store) -> None:
    first, second = await two_that_wait(store, 300, 300)
    await give_feedback(store, second, 1.0)
    assert [slot.score for slot in (await found(store, first))[0].slots] == [None, 1.0]


async def test_a_given_score_is_not_changed_while_another_episode_of_the_group_waits(store: Store) -> None:
    """Not by feedback, and not by feedback of a turn."""
    first, _ = await two_that_wait(store, 300, 300)
    await give_feedback(store, first, 1.0)
    before = await everything(store.database)
    for turn in (None, 0):
        with pytest.raises(FeedbackRefused):
            await give_feedback(store, first, 0.0, turn=turn)
    assert await everything(store.database) == before


async def test_a_deadline_ends_only_the_episodes_whose_own_it_is(store: Store) -> None:
    first, second = await two_that_wait(store, 300, 600)
    over = {"slots.0.free_at": EPOCH, "waiting_until": EPOCH}  # the first deadline has come
    await store.database["tasks"].update_one({}, {"$set": over})
    task = await store.feedback.end_overdue("main")
    assert task is not None
    assert [slot.status for slot in task.slots] == [SlotStatus.SCORED, SlotStatus.WAITING]
    assert task.waiting_until == task.slots[1].free_at
    assert await store.feedback.end_overdue("main") is None
    await give_feedback(store, second, 1.0)
    assert (await found(store, first))[0].status is TaskStatus.COMPLETED
