"""How far tasks may be opened: what an index says of the groups between being opened and being trained.

    created ─open─▶ running, completed ─settle─▶ ready ─commit─▶ trained, not published ─announce─▶ out of sight
                    └──────────── these are counted: they use up the off-policy budget ───────────┘

Nothing here grows with a run: what was trained, abandoned, skipped or set aside is never looked at, and counting ends
with the last that matters. No counter is kept either, which a kill between two writes could leave wrong. Groups move
to the right while this looks, so it looks from the left: one that moves meanwhile counts twice, and none is missed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.states import OPENED, DataStatus, TaskStatus
from shared.names import TRAIN_SPLIT
from shared.store.retry import survives_outages

Document = dict[str, Any]
RECORDS_AT_FIRST = 16  # of each group that matters are read; where groups are larger, twice as many, and so on


@dataclass(frozen=True, slots=True)
class OffPolicyBudget:
    """Of one policy's trainer: `groups` may be opened that the weights of `step` (the newest published) were not trained on."""

    step: int
    groups: int


@survives_outages
class AdmissionVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._data: AsyncCollection[Document] = database["record_data"]

    async def ensure_indexes(self) -> None:
        await self._data.create_index(
            [("policy", 1), ("status", 1), ("trained_count", 1), ("task", 1)], name="untrained groups"
        )
        await self._data.create_index([("policy", 1), ("last_trained_step", 1), ("task", 1)], name="trained groups")

    async def seq_limit(self, owner: str, budgets: Mapping[str, OffPolicyBudget]) -> int:
        """`seq` below which `owner`'s train tasks may be played: a group is opened while every one of `budgets` has room.

        They must have been read before. AReaL's capacity inequality (arXiv 2505.24298), of what the documents say.
        """
        most = max(budget.groups for budget in budgets.values())
        end = await self._end(owner)  # first: what is imported from here on counts as waiting
        waiting = await self._waiting(owner, most + 1)
        opened = await self._tasks.count_documents(_of(owner, {"$in": OPENED}), limit=most + 1, hint="claim")
        room = min([budget.groups - opened - await self._untrained(p, budget, opened) for p, budget in budgets.items()])
        room = max(0, room)
        return waiting[room] if room < len(waiting) else end + room - len(waiting)

    async def _end(self, owner: str) -> int:
        train = {"policy": owner, "split": TRAIN_SPLIT}
        last = await self._tasks.find_one(train, {"_id": 0, "seq": 1}, sort=[("seq", -1)], hint="order")
        return 0 if last is None else int(last["seq"]) + 1

    async def _waiting(self, owner: str, count: int) -> list[int]:
        """`seq` of the first tasks that were never opened."""
        created = self._tasks.find(_of(owner, TaskStatus.CREATED.value), {"_id": 0, "seq": 1})
        return [int(task["seq"]) async for task in created.sort("seq").limit(count).hint("claim")]

    async def _untrained(self, policy: str, budget: OffPolicyBudget, opened: int) -> int:
        """Groups with data of `policy` that no published weights were trained on; as many as leave no room are enough."""
        ready: Document = {"policy": policy, "status": DataStatus.READY.value, "trained_count": 0}
        found = await self._count_groups(ready, "untrained groups", budget.groups - opened)
        unpublished: Document = {"policy": policy, "last_trained_step": {"$gt": budget.step}}
        return found + await self._count_groups(unpublished, "trained groups", budget.groups - opened - found)

    async def _count_groups(self, where: Document, index: str, most: int) -> int:
        """Of what is found, at most about `most`. The index holds all that is asked for, a group's records side by side."""
        limit = RECORDS_AT_FIRST * most
        while limit > 0:
            of_group: Document = {"$group": {"_id": "$task", "records": {"$sum": 1}}}
            both: Document = {"$group": {"_id": None, "groups": {"$sum": 1}, "records": {"$sum": "$records"}}}
            stages: list[Document] = [{"$match": where}, {"$limit": limit}, of_group, both]
            rows = await (await self._data.aggregate(stages, hint=index)).to_list()
            if not rows or rows[0]["groups"] >= most or rows[0]["records"] < limit:
                return int(rows[0]["groups"]) if rows else 0
            limit *= 2
        return 0


def _of(owner: str, status: object) -> Document:
    return {"policy": owner, "split": TRAIN_SPLIT, "status": status}
