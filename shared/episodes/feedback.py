"""Gives feedback to an episode that waits for it: what `tandem feedback` and the gateway's `POST /v1/feedback` call.

    given = await give_feedback(store, "main:train:0:t0:0:1", 1.0, comment="solved it", source="ann")

The same feedback may be given again. Anything else for an episode that does not wait is refused, with a reason.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shared.documents import Feedback, Record, Slot, Task
from shared.documents.states import SlotStatus
from shared.errors import FeedbackRefused
from shared.scores import is_usable, usable_score
from shared.store import Store
from shared.store.feedback import NOT_GIVEN


@dataclass(frozen=True, slots=True)
class FeedbackGiven:
    """`again`: it was given before. `episodes`: those of its group by the slot's status; a group is trained once none waits."""

    record: str
    turn: int | None
    score: float
    again: bool
    episodes: dict[str, int]


async def give_feedback(
    store: Store,
    record_id: str,
    score: float,
    *,
    turn: int | None = None,
    comment: str | None = None,
    source: str | None = None,
) -> FeedbackGiven:
    """Score an episode that waits, or one `turn` of it as a part of the episode's score. Raises FeedbackRefused."""
    feedback = _checked(record_id, turn=turn, score=score, comment=comment, source=source)
    record = await store.records.get(record_id)
    if record is None:
        raise FeedbackRefused("unknown", f"run {store.run}: no record is called {record_id!r}; {_listed(store)}")
    if turn is not None and record.traj and f"{record_id}:{turn}" not in record.traj:
        turns = f"turns 0 to {len(record.traj) - 1}"
        raise FeedbackRefused("invalid", f"record {record_id} has no turn {turn}; expected one of its {turns}")
    task = await store.feedback.give(record_id, feedback)
    again = task is None
    if task is None:
        task = await _given_before(store, record, feedback)
    await store.feedback.write_scores(task)
    return FeedbackGiven(record_id, turn, feedback.score, again, _by_status(task))


def _checked(record_id: str, *, score: object, **fields: Any) -> Feedback:
    fields["score"] = score if isinstance(score, bool) or not is_usable(score) else usable_score(score)
    try:
        return Feedback(**fields)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        actual = repr(first["input"])[:100]
        raise FeedbackRefused("invalid", f"feedback for {record_id}: {name} is {actual}; {first['msg']}") from exc


async def _given_before(store: Store, record: Record, feedback: Feedback) -> Task:
    """The task, if it has this very feedback. Raises FeedbackRefused, with what the episode's slot says."""
    task = await store.tasks.get(record.task)
    if task is None:
        raise FeedbackRefused("unknown", f"record {record.id}: its task {record.task} is gone")
    slot = task.slots[record.traj_id]
    if slot.record_id == record.id:
        for given in slot.feedback:
            if given.turn == feedback.turn and given.score == feedback.score:
                return task
    raise _refusal(store, record, slot, feedback)


def _refusal(store: Store, record: Record, slot: Slot, feedback: Feedback) -> FeedbackRefused:
    whose = f"record {record.id}" if feedback.turn is None else f"turn {feedback.turn} of record {record.id}"
    given = next((given for given in slot.feedback if given.turn == feedback.turn), None)
    if slot.attempt != record.attempt or (slot.record_id != record.id and slot.status is not SlotStatus.LEASED):
        state = f"is {record.status.value}; its slot's current attempt is {slot.attempt}"
        return FeedbackRefused("failed", f"record {record.id} {state}, its own is {record.attempt}; {_listed(store)}")
    if given is not None:
        by = f" by {given.source}" if given.source else ""
        state = f"has score {given.score:g}, given at {given.given_at} UTC{by}"
        return FeedbackRefused("scored", f"{whose} {state}; a given score is not changed (found {feedback.score:g})")
    if slot.status in (SlotStatus.OPEN, SlotStatus.LEASED):
        return FeedbackRefused("playing", f"record {record.id} is still played; give its score when it has ended")
    if slot.status is SlotStatus.WAITING:
        return FeedbackRefused("late", f"{whose}: the deadline for feedback was {slot.free_at} UTC")
    if slot.status is SlotStatus.FAILED and slot.error == NOT_GIVEN:
        return FeedbackRefused("late", f"{whose}: {NOT_GIVEN}, {slot.free_at} UTC; it was set aside")
    if slot.status is SlotStatus.FAILED:
        return FeedbackRefused("failed", f"record {record.id} failed: {slot.error}; it has nothing to score")
    if slot.score_without_feedback is not None and not _has_final(slot):
        scored = f"the deadline for feedback was {slot.free_at} UTC; the task's scorer gave {slot.score}"
        return FeedbackRefused("late", f"{whose}: {scored}")
    how = "by feedback" if _has_final(slot) else "at its end; feedback_deadline_s lets a sampler's episodes wait"
    return FeedbackRefused("scored", f"{whose}: the episode was scored {slot.score} {how}; {_listed(store)}")


def _has_final(slot: Slot) -> bool:
    return any(given.turn is None for given in slot.feedback)


def _by_status(task: Task) -> dict[str, int]:
    counts: dict[str, int] = {}
    for slot in task.slots:
        counts[slot.status.value] = counts.get(slot.status.value, 0) + 1
    return counts


def _listed(store: Store) -> str:
    return f"`tandem feedback {store.run} --list` prints those that wait"
