"""Verbs on episodes whose score comes later. The slot decides, in one atomic update; its record and dispatches follow.

    leased ─await_feedback─▶ waiting ─give─▶ scored               score and comment are the feedback's
                                  └─end_overdue, at the deadline─▶ scored (`score_without_feedback`) | failed

`write_scores` brings records and dispatches in line with the task. It is a function of the task's document, so it is repeated by
every settlement: a process that dies between the two writes costs nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Feedback, Slot, Task, task_of
from shared.documents.states import RecordStatus, SlotStatus
from shared.store.indexes import add_index, with_index
from shared.store.malformed import MalformedVerbs, readable
from shared.store.pipelines import NOW, literal, literals, merge_slot
from shared.store.retry import survives_outages
from shared.store.signals import Signal, Signals
from shared.store.slots import close_group
from shared.store.spoilt_tasks import SpoiltTasks

Document = dict[str, Any]
WAITS: Document = {"slots.status": SlotStatus.WAITING.value}
NOT_GIVEN = "no feedback came before the deadline"


@dataclass(frozen=True, slots=True)
class WaitingEpisode:
    """An episode that waits for feedback; `score_without`: what it gets at the deadline, None: it fails."""

    record: str
    deadline: datetime
    score_without: float | None
    feedback: tuple[Feedback, ...]  # of turns, so far


@survives_outages
class FeedbackVerbs:
    def __init__(self, database: AsyncDatabase[Document], signals: Signals) -> None:
        self._signals = signals
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._records: AsyncCollection[Document] = database["records"]
        self._dispatches: AsyncCollection[Document] = database["dispatched_sampling_tasks"]
        self._spoilt = SpoiltTasks(self._tasks, MalformedVerbs(database))

    async def ensure_indexes(self) -> None:
        """Small: it holds only tasks that wait."""
        await add_index(
            self._tasks, [("waiting_until", 1), ("policy", 1)], name="feedback", partialFilterExpression=WAITS
        )

    async def give(self, record_id: str, feedback: Feedback) -> Task | None:
        """Add feedback to the episode that waits for it; without a turn, it is its score. Returns the task, or None if nothing
        was changed: the episode does not wait, its deadline is over, or it has this feedback (of the turn) already.
        """
        values = literals(feedback.model_dump(exclude={"given_at"})) | {"given_at": NOW}
        given: Document = {"$ifNull": ["$$s.feedback", []]}
        turns = {"$map": {"input": given, "as": "f", "in": "$$f.turn"}}
        waits = {
            "$and": [
                {"$eq": ["$$s.record_id", literal(record_id)]},
                {"$eq": ["$$s.status", SlotStatus.WAITING]},
                {"$gt": ["$$s.free_at", NOW]},
                {"$not": {"$in": [literal(feedback.turn), turns]}},
            ]
        }
        change: Document = {"feedback": {"$concatArrays": [given, [values]]}}
        if feedback.turn is None:
            change |= {"status": SlotStatus.SCORED.value, "score": literal(feedback.score)}
        waiting = {"$map": {"input": "$slots", "as": "s", "in": waits}}
        document = await self._tasks.find_one_and_update(
            {"_id": task_of(record_id), **WAITS, "$expr": {"$anyElementTrue": [waiting]}},
            [{"$set": {"slots": merge_slot(waits, change)}}, *close_group()],
            return_document=ReturnDocument.AFTER,
        )
        if document is None:
            return None
        self._signals.send(Signal.TASKS)
        return Task.from_mongo(document)

    async def end_overdue(self, policy: str) -> Task | None:
        """End the waiting of one task's episodes whose deadline is over; None: there is none."""
        over = {"$and": [{"$eq": ["$$s.status", SlotStatus.WAITING]}, {"$lte": ["$$s.free_at", NOW]}]}
        score = {"$ifNull": ["$$s.score_without_feedback", None]}
        fails = {"$eq": [score, None]}
        change = {
            "status": {"$cond": [fails, SlotStatus.FAILED.value, SlotStatus.SCORED.value]},
            "score": score,
            "error": {"$cond": [fails, NOT_GIVEN, None]},
        }
        where: Document = {**WAITS, "policy": policy, "$expr": {"$lte": ["$waiting_until", NOW]}}
        while True:
            document = await self._spoilt.update(where, [{"$set": {"slots": merge_slot(over, change)}}, *close_group()])
            if document is None:
                return None
            task = await self._spoilt.read(document)
            if task is not None:
                return task

    async def write_scores(self, task: Task) -> None:
        """Write what the task says of episodes that waited to their records and dispatches."""
        ended = [slot for slot in task.slots if slot.record_id is not None and _has_waited(slot)]
        turns = [
            UpdateOne({"_id": f"{slot.record_id}:{given.turn}"}, {"$set": {"score": given.score}})
            for slot in ended
            for given in slot.feedback
            if given.turn is not None and slot.status is SlotStatus.SCORED
        ]
        if turns:
            await self._dispatches.bulk_write(turns, ordered=False)
        if ended:
            await self._records.bulk_write([_end_record(slot) for slot in ended], ordered=False)

    # ------------------------------------------------------------------ questions

    async def waiting(self, limit: int) -> list[WaitingEpisode]:
        """Episodes that wait, those of the earliest deadline first. Malformed tasks are left out."""
        episodes: list[WaitingEpisode] = []

        async def ask(by: Document) -> list[Task]:
            return await readable(Task, self._tasks.find(WAITS, **by).sort([("waiting_until", 1)]).limit(limit))

        for task in await with_index("feedback", ask):
            episodes += [
                WaitingEpisode(slot.record_id, slot.free_at, slot.score_without_feedback, tuple(slot.feedback))
                for slot in task.slots
                if slot.status is SlotStatus.WAITING and slot.record_id is not None
            ]
        return sorted(episodes, key=lambda episode: (episode.deadline, episode.record))[:limit]


def _has_waited(slot: Slot) -> bool:
    """Whether the slot's episode ended by feedback or by its deadline. Of a failed one the record tells: see `_end_record`."""
    if slot.status is SlotStatus.FAILED:
        return slot.error == NOT_GIVEN
    return slot.status is SlotStatus.SCORED and (bool(slot.feedback) or slot.score_without_feedback is not None)


def _end_record(slot: Slot) -> UpdateOne:
    """Only a record that waits is moved. `finished_at` stays the end of the episode, whose duration it gives."""
    by_feedback = [given for given in slot.feedback if given.turn is None]
    entries: Document = {"feedback": [given.model_dump() for given in slot.feedback]} if slot.feedback else {}
    waits: Document = {"_id": slot.record_id, "status": RecordStatus.COMPLETED.value}
    if slot.status is SlotStatus.FAILED:
        change: Document = {"status": RecordStatus.ABANDONED.value, "reason": NOT_GIVEN}
    elif by_feedback:
        change = {"score": slot.score, "reward_details": literal({"scorer": "feedback", **entries})}
    else:
        details = ["$without_feedback.reward_details", literal({**entries, "feedback_missing": NOT_GIVEN})]
        change = {
            "score": slot.score,
            "policy_scores": "$without_feedback.policy_scores",
            "reward_details": {"$mergeObjects": details},
        }
    return UpdateOne(waits, [{"$set": {"status": RecordStatus.SCORED.value} | change}])
