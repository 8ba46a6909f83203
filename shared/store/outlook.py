"""Where the next training data will come from: what the train tasks of a run are waiting for. Reads only.

    unopened ─▶ playing ─▶ completed ─settle─▶ data          failing: a slot failed `FAILING_FROM` times, and is tried again
                   └─▶ awaiting feedback

Admission does not count failing groups (up to one step's), so that they hold no untouched task back.
"""

from dataclasses import dataclass
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.states import OPENED, UNENDED, SlotStatus, TaskStatus
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.outside_text import clipped
from shared.store.indexes import with_index
from shared.store.pipelines import literal
from shared.store.retry import survives_outages

Document = dict[str, Any]
FAILING_FROM = 2  # failures of one slot: a single one is a lost lease, or a restart
MAX_ERROR_CHARS = 120

UNSCORED = {"$in": [SlotStatus.OPEN.value, SlotStatus.LEASED.value]}
IS_FAILING: Document = {"slots": {"$elemMatch": {"status": UNSCORED, "failures": {"$gte": FAILING_FROM}}}}


@dataclass(frozen=True, slots=True)
class Outlook:
    """Groups of train tasks by what they wait for. `error`: the last one of a failing group."""

    any_task: bool = False
    next_seq: int | None = None  # of the first unopened task; None: none is left
    playing: int = 0
    failing: int = 0
    error: str = ""
    awaiting_feedback: int = 0
    unsettled: int = 0
    in_evaluation: bool = False  # held-out tasks are played, or will be

    @property
    def unopened(self) -> bool:
        return self.next_seq is not None

    @property
    def may_give_data(self) -> bool:
        return self.unopened or self.playing + self.failing + self.awaiting_feedback + self.unsettled > 0

    def __str__(self) -> str:
        if not self.any_task:
            return "no task is imported yet"
        failing = f"{self.failing} failing ({self.error})" if self.failing else ""
        counted = {
            "being played": self.playing,
            "waiting for feedback": self.awaiting_feedback,
            "to be settled": self.unsettled,
        }
        groups = [*(f"{n} {state}" for state, n in counted.items() if n), *([failing] if failing else [])]
        return ", ".join([*groups, "more tasks to open" if self.unopened else "no task left to open"])


@survives_outages
class OutlookVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]

    async def count_failing(self, policy: str, limit: int) -> int:
        """Groups that fail repeatedly, up to `limit`."""
        where = {"policy": policy, "split": TRAIN_SPLIT, "status": TaskStatus.RUNNING.value} | IS_FAILING
        return await with_index("by status", lambda by: self._tasks.count_documents(where, limit=limit, **by))

    async def of_run(self) -> Outlook:
        """Of all policies' tasks: an episode may give data to every policy."""
        policies = [str(policy) for policy in await self._tasks.distinct("policy")]
        rows = [row for policy in policies for row in await self._rows(policy)]
        errors = [str(row["error"]) for row in rows if row.get("error")]
        return Outlook(
            any_task=any("any_task" in row for row in rows),
            next_seq=min((int(row["next_seq"]) for row in rows if "next_seq" in row), default=None),
            playing=sum(row.get("playing", 0) for row in rows),
            failing=sum(row.get("failing", 0) for row in rows),
            error=clipped(errors[0], MAX_ERROR_CHARS) if errors else "",
            awaiting_feedback=sum(row.get("awaiting", 0) for row in rows),
            unsettled=sum(row.get("unsettled", 0) for row in rows),
            in_evaluation=any("in_evaluation" in row for row in rows),
        )

    async def _rows(self, policy: str) -> list[Document]:
        """What is known of one policy's tasks, by one command: every service that waits repeats it."""
        train, held_out = {"policy": policy, "split": TRAIN_SPLIT}, {"policy": policy, "split": EVAL_SPLIT}
        stages = [
            *_counts_of_opened(train),  # first, since the index is named for it: admission bounds their number
            self._and(
                [{"$match": train | {"status": TaskStatus.CREATED.value}}, {"$sort": {"seq": 1}}], "next_seq", "$seq"
            ),
            self._and([{"$match": train}], "any_task", literal(True)),
            self._and([{"$match": held_out | {"status": {"$in": UNENDED}}}], "in_evaluation", literal(True)),
        ]
        cursor = await with_index("by status", lambda by: self._tasks.aggregate(stages, **by))
        return await cursor.to_list()

    def _and(self, stages: list[Document], name: str, value: Any) -> Document:
        """The first document of `stages` as a row {name: value}."""
        first = [*stages, {"$limit": 1}, {"$project": {"_id": 0, name: value}}]
        return {"$unionWith": {"coll": self._tasks.name, "pipeline": first}}


def _counts_of_opened(train: Document) -> list[Document]:
    """Stages whose one row counts the groups in progress, by what they wait for; no row: there are none."""
    return [
        {"$match": train | {"status": {"$in": OPENED}} | _IS_READABLE},
        {"$set": {"group": _STATE, "failed": _FAILED_SLOTS}},
        {
            "$group": {
                "_id": None,
                **{name: {"$sum": {"$cond": [{"$eq": ["$group", name]}, 1, 0]}} for name in _STATES},
                "error": {"$max": {"$arrayElemAt": ["$failed.error", 0]}},
            }
        },
    ]


def _slots_with(condition: Document) -> Document:
    return {"$filter": {"input": "$slots", "as": "s", "cond": condition}}


_IS_READABLE: Document = {"$expr": {"$isArray": "$slots"}}
_STATES = ("playing", "failing", "awaiting", "unsettled")
_IS_UNSCORED: Document = {"$in": ["$$s.status", UNSCORED["$in"]]}
_FAILED_SLOTS = _slots_with({"$and": [_IS_UNSCORED, {"$gte": ["$$s.failures", FAILING_FROM]}]})
_STATE: Document = {
    "$switch": {
        "branches": [
            {"case": {"$eq": ["$status", TaskStatus.COMPLETED.value]}, "then": "unsettled"},
            {"case": {"$ne": [_FAILED_SLOTS, []]}, "then": "failing"},
            {"case": {"$ne": [_slots_with(_IS_UNSCORED), []]}, "then": "playing"},
        ],
        "default": "awaiting",
    }
}
