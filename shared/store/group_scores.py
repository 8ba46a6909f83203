"""Verbs on completed groups that group scorers score: a judge that compares a group's episodes, say.

    completed ─claim_settlement─▶ begin ─renew…─▶ keep ─▶ settled as any other group
                                    └─▶ postpone: again later, after a failure or none

Of two processes that score the same group, the one that began last has the attempt: only its scores, or its failure, count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Task
from shared.documents.scoring import GroupScore
from shared.documents.states import SlotStatus, TaskStatus
from shared.outside_text import MAX_ERROR_CHARS, clipped
from shared.store.pipelines import NOW, after, literal, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]
# A completed group that has no group scores and may still get some.
UNSCORED: Document = {
    "status": TaskStatus.COMPLETED.value,
    "group_scores": {"$in": [None, []]},
    "scoring.given_up": {"$ne": True},
}
ATTEMPT: Document = {"$ifNull": ["$scoring.attempt", 0]}


@survives_outages
class GroupScoreVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._records: AsyncCollection[Document] = database["records"]

    async def begin(self, task: Task, settler: str) -> int | None:
        """The number of a new attempt at scoring the group; None: it is not leased by `settler` any more."""
        before = task.scoring.attempt if task.scoring is not None else 0
        await self._tasks.update_one(
            {"_id": task.id, "settler": settler, **UNSCORED, "$expr": {"$eq": [ATTEMPT, before]}},
            [
                {
                    "$set": {
                        "scoring.attempt": before + 1,
                        "scoring.failures": {"$ifNull": ["$scoring.failures", 0]},
                        "scoring.given_up": False,
                        "scoring.error": {"$ifNull": ["$scoring.error", None]},
                    }
                }
            ],
        )
        held = {"_id": task.id, "settler": settler, **UNSCORED, "scoring.attempt": before + 1}
        return before + 1 if await self._tasks.find_one(held, {"_id": 1}) is not None else None

    async def renew(self, task_id: str, attempt: int, lease_s: float) -> bool:
        """Extend the group's lease. False: another attempt has begun, or the group is scored."""
        done = await self._tasks.update_one(
            {"_id": task_id, **UNSCORED, "scoring.attempt": attempt}, [{"$set": {"free_at": after(lease_s)}}]
        )
        return done.matched_count == 1

    async def keep(
        self, task: Task, attempt: int, scores: Sequence[GroupScore], totals: Mapping[int, float]
    ) -> Task | None:
        """Store the scores, and the slots' `totals` (by traj_id). Returns the group as it is stored then; None: another attempt
        has begun, or the group is given up. Raises DoesNotFit."""
        slots = [
            {"$cond": [{"$eq": ["$$s.traj_id", traj_id]}, literal(total), None]} for traj_id, total in totals.items()
        ]
        changed = {"$mergeObjects": ["$$s", {"score": {"$ifNull": [*slots, "$$s.score"]}}]}
        await self._tasks.update_one(
            {"_id": task.id, **UNSCORED, "scoring.attempt": attempt},
            [
                {
                    "$set": {
                        "group_scores": literal([one.model_dump() for one in scores]),
                        "slots": {"$map": {"input": "$slots", "as": "s", "in": changed}},
                    }
                }
            ],
        )
        mine = {"status": TaskStatus.COMPLETED.value, "scoring.attempt": attempt, "group_scores.0": {"$exists": True}}
        task_document = await self._tasks.find_one({"_id": task.id, **mine})
        return None if task_document is None else Task.from_mongo(task_document)

    async def postpone(
        self,
        task_id: str,
        attempt: int,
        settler: str,
        *,
        delay_s: float,
        error: str | None = None,
        max_failures: int = 1,
    ) -> Task | None:
        """End an attempt; another may begin after `delay_s`. `error`: it failed, which is counted; after `max_failures` the group
        is given up. Returns the group if this ended the attempt."""
        failures: Document = {"$add": ["$scoring.failures", 1]}
        failed: Document = {
            "scoring.failures": failures,
            "scoring.given_up": {"$gte": [failures, max_failures]},
            "scoring.error": literal(clipped(error or "", MAX_ERROR_CHARS)),
        }
        change: Document = {"settler": None, "free_at": after(delay_s) if delay_s else NOW}
        stored = await self._tasks.find_one_and_update(
            {"_id": task_id, "settler": settler, **UNSCORED, "scoring.attempt": attempt},
            [{"$set": change | (failed if error is not None else {})}],
            return_document=ReturnDocument.AFTER,
        )
        return None if stored is None else Task.from_mongo(stored)

    async def write_records(self, task: Task) -> None:
        """Bring the records in line with the group's scores: a function of the task's document, repeated by every settlement."""
        updates = []
        for slot in task.slots:
            if slot.status is not SlotStatus.SCORED or slot.record_id is None or not task.group_scores:
                continue
            details = [
                {
                    "scorer": one.scorer,
                    "value": one.values[slot.traj_id],
                    "weight": one.weight,
                    "reason": one.reasons[slot.traj_id],
                }
                for one in task.group_scores
            ]
            metrics = {name: value for one in task.group_scores for name, value in one.metrics_of(slot.traj_id).items()}
            change = {"score": slot.score, "reward_details.group_scores": literal(details)}
            change |= {f"metrics.{name}": value for name, value in literals(metrics).items()}
            updates.append(UpdateOne({"_id": slot.record_id}, [{"$set": change}]))
        if updates:
            await self._records.bulk_write(updates, ordered=False)
