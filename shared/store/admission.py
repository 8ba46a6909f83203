"""Computes how many tasks may be opened, by counting the groups between opening and publication with indexes.

    created ─open─▶ running, completed ─settle─▶ ready ─commit─▶ trained, not published ─announce─▶ no longer counted
                    └──────────── these are counted: they use up the off-policy budget ───────────┘

The cost does not grow with the run: trained, abandoned, skipped and set-aside groups are never read, and counting stops
at the limit. There is no counter that a kill between two writes could leave wrong. Groups move to the right during
counting, so counting goes from left to right: a moving group may count twice, and none is missed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.states import OPENED, DataStatus, TaskStatus
from shared.names import TRAIN_SPLIT
from shared.store.indexes import add_index, with_index
from shared.store.outlook import OutlookVerbs
from shared.store.retry import survives_outages

Document = dict[str, Any]
RECORDS_AT_FIRST = 16  # first estimate of a group's size; doubled while groups turn out larger


@dataclass(frozen=True, slots=True)
class OffPolicyBudget:
    """One policy's budget: `groups` may be open that are not part of the newest published weights, those of `step`.

    `failing`: so many groups that fail repeatedly do not count, once the budget is used up.
    """

    step: int
    groups: int
    failing: int = 0


@survives_outages
class AdmissionVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._data: AsyncCollection[Document] = database["record_data"]
        self._outlook = OutlookVerbs(database)

    async def ensure_indexes(self) -> None:
        await add_index(
            self._data, [("policy", 1), ("status", 1), ("trained_count", 1), ("task", 1)], name="untrained groups"
        )
        await add_index(self._data, [("policy", 1), ("last_trained_step", 1), ("task", 1)], name="trained groups")

    async def seq_limit(self, owner: str, budgets: Mapping[str, OffPolicyBudget]) -> int:
        """Return the `seq` below which `owner`'s train tasks may be played: a group is opened while all `budgets` have room.

        Read `budgets` before the call. This is AReaL's capacity inequality (arXiv 2505.24298), computed from documents. Groups
        that fail repeatedly give way to others, so that no retry holds a step up: at most `failing` of them, so that an outage of
        everything does not open every task.
        """
        limit, room = await self._limit(owner, budgets)
        most = max(budget.failing for budget in budgets.values())
        failing = await self._outlook.count_failing(owner, most) if room == 0 and most else 0
        if failing == 0:
            return limit
        enlarged = {p: replace(b, groups=b.groups + min(failing, b.failing)) for p, b in budgets.items() if b.groups}
        return limit if len(enlarged) < len(budgets) else (await self._limit(owner, enlarged))[0]

    async def _limit(self, owner: str, budgets: Mapping[str, OffPolicyBudget]) -> tuple[int, int]:
        """The limit, and how many groups may be opened."""
        most = max(budget.groups for budget in budgets.values())
        end = await self._end(owner)  # read first: tasks imported from here on count as waiting
        waiting = await self._waiting(owner, most + 1)
        played = _of(owner, {"$in": OPENED})
        opened = await with_index("by status", lambda by: self._tasks.count_documents(played, limit=most + 1, **by))
        room = min([budget.groups - opened - await self._untrained(p, budget, opened) for p, budget in budgets.items()])
        room = max(0, room)
        limit = waiting[room] if room < len(waiting) else end + room - len(waiting)
        return limit, room

    async def _end(self, owner: str) -> int:
        train = {"policy": owner, "split": TRAIN_SPLIT}
        newest = [("seq", -1)]
        last = await with_index(
            "order", lambda by: self._tasks.find_one(train, {"_id": 0, "seq": 1}, sort=newest, **by)
        )
        return 0 if last is None else int(last["seq"]) + 1

    async def _waiting(self, owner: str, count: int) -> list[int]:
        """`seq` of the first tasks that were never opened."""
        created = _of(owner, TaskStatus.CREATED.value)

        async def ask(by: Document) -> list[Document]:
            return await self._tasks.find(created, {"_id": 0, "seq": 1}, **by).sort("seq").limit(count).to_list()

        return [int(task["seq"]) for task in await with_index("by status", ask)]

    async def _untrained(self, policy: str, budget: OffPolicyBudget, opened: int) -> int:
        """Count groups with data of `policy` that no published weights were trained on; stops when there is no room left."""
        ready: Document = {"policy": policy, "status": DataStatus.READY.value, "trained_count": 0}
        pending = await self._count_groups(ready, "untrained groups", budget.groups - opened)
        unpublished: Document = {"policy": policy, "last_trained_step": {"$gt": budget.step}}
        return pending + await self._count_groups(unpublished, "trained groups", budget.groups - opened - pending)

    async def _count_groups(self, where: Document, index: str, most: int) -> int:
        """Count groups, up to about `most`. Covered by the index, in which a group's records are adjacent."""
        limit = RECORDS_AT_FIRST * most
        while limit > 0:
            groups, records = await self._groups_of_first(where, index, limit)
            if groups >= most or records < limit:
                return groups
            limit *= 2
        return 0

    async def _groups_of_first(self, where: Document, index: str, limit: int) -> tuple[int, int]:
        """(groups, records) of the first `limit` records."""
        of_group: Document = {"$group": {"_id": "$task", "records": {"$sum": 1}}}
        both: Document = {"$group": {"_id": None, "groups": {"$sum": 1}, "records": {"$sum": "$records"}}}
        stages: list[Document] = [{"$match": where}, {"$limit": limit}, of_group, both]
        cursor = await with_index(index, lambda by: self._data.aggregate(stages, **by))
        rows = await cursor.to_list()
        return (int(rows[0]["groups"]), int(rows[0]["records"])) if rows else (0, 0)


def _of(owner: str, status: object) -> Document:
    return {"policy": owner, "split": TRAIN_SPLIT, "status": status}
