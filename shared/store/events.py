"""What happened in a run, in the order of the server's clock, a page at a time: for those who follow it.

Every kind has an index by its time. A document may be seen after one with a later time; who follows looks back (`LOOK_BACK`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.store.pipelines import EPOCH
from shared.store.retry import survives_outages

Document = dict[str, Any]
LOOK_BACK = timedelta(seconds=5)
PAGE_TIME_MS = 30_000  # of one page, on the server
HEADLINE = ("reward/mean", "loss/loss", "data/staleness_mean")


@dataclass(frozen=True, slots=True)
class Kind:
    """A collection, the field with the time of its event, and what is read of a document."""

    collection: str
    time: str
    fields: tuple[str, ...]


KINDS = {
    "episode": Kind(
        "records", "finished_at", ("status", "score", "termination", "num_turns", "num_tokens", "error", "worker")
    ),
    "group": Kind("tasks", "settled_at", ("status", "outcome", "scores")),
    "step": Kind(
        "trained_steps",
        "created_at",
        ("policy", "step", "trainer_generation", *(f"metrics.{name}" for name in HEADLINE)),
    ),
}


@dataclass(frozen=True, slots=True)
class Event:
    """`document`: the fields of its kind, as stored."""

    at: datetime
    kind: str
    id: str
    document: Document


@survives_outages
class EventVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database

    async def since(self, kind: str, at: datetime, limit: int, after: str = "") -> list[Event]:
        """The first `limit` events from `at` on; of that moment those with ids after `after`."""
        of = KINDS[kind]
        later: list[Document] = [{of.time: {"$gt": at}}, {of.time: at, "_id": {"$gt": after}}]
        cursor = self._database[of.collection].find({"$or": later}, [of.time, *of.fields], max_time_ms=PAGE_TIME_MS)
        return [_event(kind, of, one) async for one in cursor.sort([(of.time, 1), ("_id", 1)]).limit(limit)]

    async def last(self, kind: str, limit: int) -> list[Event]:
        """The newest `limit` events, oldest first."""
        of = KINDS[kind]
        cursor = self._database[of.collection].find(
            {of.time: {"$gt": EPOCH}}, [of.time, *of.fields], max_time_ms=PAGE_TIME_MS
        )
        newest = [_event(kind, of, one) async for one in cursor.sort([(of.time, -1), ("_id", -1)]).limit(limit)]
        return newest[::-1]


def _event(kind: str, of: Kind, document: Document) -> Event:
    return Event(document[of.time], kind, str(document["_id"]), document)
