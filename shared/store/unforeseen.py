"""Verbs on groups whose settlement met a bug, and on tasks that bugs set aside."""

from dataclasses import dataclass
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Task
from shared.documents.states import TaskStatus
from shared.outside_text import clipped
from shared.store.indexes import add_index
from shared.store.pipelines import NOW, after, literal, map_slots
from shared.store.retry import survives_outages
from shared.store.slots import IS_SET_ASIDE

Document = dict[str, Any]
SET_ASIDE: Document = {"unforeseen.set_aside": True}
MOST_LISTED = 20
MAX_BUG_CHARS = 500


@dataclass(frozen=True, slots=True)
class TaskSetAside:
    """`outcome` is None while some of its slots are still played."""

    task: str
    episodes: int
    settlements: int
    error: str
    outcome: str | None

    def __str__(self) -> str:
        met = [f"{self.episodes} of its episodes"] if self.episodes else []
        met += [f"{self.settlements} of its settlements"] if self.settlements else []
        return f"task {self.task}: {' and '.join(met)} met a bug; the last: {self.error}"


@survives_outages
class UnforeseenVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]

    async def ensure_indexes(self) -> None:
        await add_index(self._tasks, [("unforeseen.set_aside", 1)], name="set aside", partialFilterExpression=SET_ASIDE)

    async def settlement_failed(self, task: Task, error: str, *, delay_s: float, max_failures: int) -> bool:
        """Count a settlement of a claimed group that met a bug. Another may begin after `delay_s`; after `max_failures` the
        group is abandoned. Returns True if it is now."""
        before = 0 if task.unforeseen is None else task.unforeseen.settlements
        error, over = clipped(error, MAX_BUG_CHARS), before + 1 >= max_failures
        counted: Document = {
            "episodes": {"$ifNull": ["$unforeseen.episodes", 0]},
            "settlements": before + 1,
            "error": literal(error),
            "set_aside": {"$or": [IS_SET_ASIDE, over]},
        }
        change: Document = {"unforeseen": counted, "settler": None, "free_at": after(delay_s)}
        if over:
            change |= {
                "status": TaskStatus.ABANDONED.value,
                "outcome": literal(f"abandoned: its settlement met a bug {before + 1} times: {error}"),
                "settled_at": NOW,
                "scores": map_slots("$$s.score"),
            }
        met: Document = {"$eq": [{"$ifNull": ["$unforeseen.settlements", 0]}, before]}
        held = {"_id": task.id, "status": TaskStatus.COMPLETED.value, "settler": task.settler, "$expr": met}
        return (await self._tasks.update_one(held, [{"$set": change}])).modified_count == 1 and over

    async def tasks_set_aside(self) -> list[TaskSetAside]:
        """At most `MOST_LISTED`."""
        cursor = self._tasks.find(SET_ASIDE, {"unforeseen": 1, "outcome": 1}).limit(MOST_LISTED)
        return [_read(document) async for document in cursor]


def _read(document: Document) -> TaskSetAside:
    """Any document: one written by hand must not end who lists it."""
    met = document["unforeseen"]
    counts = [met.get(name) for name in ("episodes", "settlements")]
    episodes, settlements = (count if isinstance(count, int) else 0 for count in counts)
    return TaskSetAside(
        str(document["_id"]),
        episodes,
        settlements,
        str(met.get("error", ""))[:MAX_BUG_CHARS],
        document.get("outcome"),
    )
