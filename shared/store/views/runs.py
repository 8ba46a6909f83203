"""The runs of a server, each in one line. Reads five documents of each, and counts from the collections' metadata."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from shared.documents.run import Run
from shared.errors import DataError
from shared.store import Store
from shared.store.condition import condition_of
from shared.store.server_runs import of_each_run


@dataclass(frozen=True, slots=True)
class RunRow:
    """`state`: a Condition; "unreadable" if another version wrote it."""

    name: str
    state: str
    policies: list[str]
    step: int | None  # of the newest weights, the lowest of all policies
    num_steps: int | None  # to be trained
    tasks: int
    records: int
    dispatches: int
    created_at: datetime | None
    last_seen: datetime | None  # the newest heartbeat of any process
    alive: int  # processes
    reason: str = ""  # of its state


async def list_runs(client: AsyncMongoClient[dict[str, Any]]) -> list[RunRow]:
    """Databases with a run's document, the newest first."""

    async def one(name: str) -> RunRow | None:
        store = Store(client, name)
        try:
            if await store.database["runs"].find_one({}, {"_id": 1}) is None:
                return None
            return await run_row(store)
        except OperationFailure as exc:  # a database of something else, or one that this user may not read
            return _unreadable(name, str(exc))

    rows = await of_each_run(client, one)
    return sorted(rows, key=lambda row: (row.created_at is not None, row.created_at), reverse=True)


async def run_row(store: Store) -> RunRow:
    try:
        run = await store.runs.read()
    except DataError as exc:
        return _unreadable(store.run, str(exc))
    policies = await policies_of_run(store, run)
    newest = [await store.versions.newest(policy) for policy in policies]
    steps = [version.step for version in newest if version is not None]
    num_steps = [admission.num_steps for admission in run.admission.values() if admission.num_steps is not None]
    state = await condition_of(store)
    last_seen, alive = await _heartbeats(store)
    return RunRow(
        name=store.run,
        state=state.condition.value,
        reason=state.reason,
        policies=policies,
        step=min(steps, default=None),
        num_steps=min(num_steps, default=None),
        tasks=await store.database["tasks"].estimated_document_count(),
        records=await store.database["records"].estimated_document_count(),
        dispatches=await store.database["dispatched_sampling_tasks"].estimated_document_count(),
        created_at=run.created_at,
        last_seen=last_seen,
        alive=alive,
    )


async def policies_of_run(store: Store, run: Run) -> list[str]:
    """Those that a trainer was started for; of a run without one, those with weights."""
    return sorted(run.admission) or sorted(await store.database["policy_versions"].distinct("policy"))


async def _heartbeats(store: Store) -> tuple[datetime | None, int]:
    """The newest heartbeat, and how many processes are alive."""
    alive = len(await store.workers.live())
    newest = await store.database["workers"].find_one({}, {"heartbeat": 1}, sort=[("heartbeat", -1)])
    return (newest.get("heartbeat") if newest else None), alive


def _unreadable(name: str, error: str) -> RunRow:
    return RunRow(name, "unreadable", [], None, None, 0, 0, 0, None, None, 0, error)
