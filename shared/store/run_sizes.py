"""The runs of a server with their condition, age and size: what `tandem runs` lists."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from shared.errors import DataError
from shared.names import OWN_DATABASES
from shared.store import Store
from shared.store.condition import Condition, condition_of

MOST_RUNS = 1_000  # by name; more are not listed
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class SizedRun:
    """`created_at` None: not known. `bytes`: on disk, with indexes."""

    name: str
    condition: Condition
    reason: str
    created_at: datetime | None
    heard_at: datetime | None  # the newest heartbeat of a process
    bytes: int
    documents: int


async def sized_runs(client: AsyncMongoClient[dict[str, Any]]) -> list[SizedRun]:
    """Every database with a run's document, the oldest first."""
    names = sorted(set(await client.list_database_names()) - set(OWN_DATABASES))[:MOST_RUNS]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> SizedRun | None:
        async with gate:
            try:
                return await sized_run(Store(client, name))
            except OperationFailure:  # a database that this user may not read
                return None

    rows = [row for row in await asyncio.gather(*map(one, names)) if row is not None]
    return sorted(rows, key=lambda row: (row.created_at is not None, row.created_at, row.name))


async def sized_run(store: Store) -> SizedRun | None:
    """None: the database is no run."""
    document = await store.database["runs"].find_one({"_id": "run"}, {"created_at": 1})
    if document is None:
        return None
    try:
        found = await condition_of(store)
        condition, reason = found.condition, found.reason
    except DataError as exc:
        condition, reason = Condition.UNKNOWN, str(exc)
    stats = await store.database.command("dbStats")
    newest = await store.database["workers"].find_one({}, {"heartbeat": 1}, sort=[("heartbeat", -1)])
    return SizedRun(
        store.run,
        condition,
        reason,
        document.get("created_at"),
        None if newest is None else newest.get("heartbeat"),
        int(stats["storageSize"] + stats["indexSize"]),
        int(stats["objects"]),
    )
