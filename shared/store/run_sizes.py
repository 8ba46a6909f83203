"""The runs of a server with their condition, age and size: what `tandem runs` lists."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from shared.errors import DataError
from shared.store import Store
from shared.store.condition import Condition, condition_of
from shared.store.server_runs import of_each_run
from shared.store.users import COLLECTIONS


@dataclass(frozen=True, slots=True)
class SizedRun:
    """`created_at` None: not known. `bytes`: on disk, with indexes. `alive`: processes. `imported_at`: of the newest
    task, of a run that was never started. `data_runs`: those whose data its trainers take."""

    name: str
    condition: Condition
    reason: str
    created_at: datetime | None
    last_seen: datetime | None  # the newest heartbeat of a process
    bytes: int
    documents: int
    alive: int
    imported_at: datetime | None
    data_runs: tuple[str, ...]

    @property
    def last_sign(self) -> datetime | None:
        """The latest time at which something is known to have happened."""
        return max((time for time in (self.created_at, self.last_seen, self.imported_at) if time), default=None)


async def sized_runs(client: AsyncMongoClient[dict[str, Any]]) -> list[SizedRun]:
    """Every database with a run's document, the oldest first."""

    async def one(name: str) -> SizedRun | None:
        try:
            return await sized_run(Store(client, name))
        except OperationFailure:  # a database that this user may not read
            return None

    return sorted(
        await of_each_run(client, one), key=lambda row: (row.created_at is not None, row.created_at, row.name)
    )


async def sized_run(store: Store) -> SizedRun | None:
    """None: the database is no run."""
    document = await store.database["runs"].find_one({"_id": "run"}, {"created_at": 1})
    if document is None:
        return None
    alive, data_runs = 0, set[str]()
    try:
        run = await store.runs.read()  # a run of another version is not known to be over
        settings = (await store.settings.last(run)).values()
        data_runs = {str(values["data_run"]) for values in settings if values.get("data_run")}
        state = await condition_of(store)
        condition, reason = state.condition, state.reason
        alive = len(await store.workers.live())
    except DataError as exc:
        condition, reason = Condition.UNKNOWN, str(exc)
    stats = await store.database.command("dbStats")
    return SizedRun(
        store.run,
        condition,
        reason,
        _time(document.get("created_at")),
        await _newest(store, "workers", "heartbeat"),
        int(stats["storageSize"] + stats["indexSize"]),
        int(stats["objects"]),
        alive,
        await _newest(store, "tasks", "created_at") if condition is Condition.UNSTARTED else None,  # reads all tasks
        tuple(sorted(data_runs)),
    )


async def foreign_collections(store: Store) -> list[str]:
    """Collections of the run's database that no part of Tandem wrote."""
    names = await store.database.list_collection_names()
    return sorted(name for name in set(names) - set(COLLECTIONS) if not name.startswith("system."))


async def _newest(store: Store, collection: str, field: str) -> datetime | None:
    dated = {field: {"$type": "date"}}
    newest = await store.database[collection].find_one(dated, {field: 1}, sort=[(field, -1)])
    return None if newest is None else _time(newest[field])


def _time(value: object) -> datetime | None:
    """A database of something else may have a text there."""
    return value if isinstance(value, datetime) else None
