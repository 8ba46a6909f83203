"""Reads groups in the order in which they were settled, and a step's records, in pages of bounded size: for exports."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.documents import Record
from shared.store import Store
from shared.store.events import PAGE_TIME_MS
from shared.store.malformed import readable
from shared.store.pipelines import EPOCH

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SettledPlace:
    """After which settled group to go on. Groups that were settled at the same time are in the order of their ids."""

    settled_at: datetime = EPOCH
    task: str = ""


async def settled_after(store: Store, place: SettledPlace, limit: int) -> list[SettledPlace]:
    """The next groups, oldest first; also those whose documents cannot be read, so that a page of them is no end."""
    later: list[Document] = [
        {"settled_at": {"$gt": place.settled_at}},
        {"settled_at": place.settled_at, "_id": {"$gt": place.task}},
    ]
    cursor = store.database["tasks"].find({"$or": later}, {"settled_at": 1}, max_time_ms=PAGE_TIME_MS)
    ordered = cursor.sort([("settled_at", 1), ("_id", 1)]).limit(limit)
    return [SettledPlace(group["settled_at"], group["_id"]) async for group in ordered]


async def attempts_at(store: Store, tasks: Sequence[str]) -> list[Record]:
    """Every attempt at every slot of the tasks, by task and slot."""
    cursor = store.database["records"].find({"task": {"$in": list(tasks)}}, max_time_ms=PAGE_TIME_MS)
    return await readable(Record, cursor.sort([("task", 1), ("traj_id", 1), ("attempt", 1)]))


async def records_of_step(store: Store, step: int, policy: str | None = None) -> list[str]:
    """Ids of the records that a step trained; `policy`: of this one alone."""
    where: Document = {"trained_steps": step} | ({} if policy is None else {"policy": policy})
    cursor = store.database["record_data"].find(where, {"record": 1}, max_time_ms=PAGE_TIME_MS)
    return sorted({document["record"] async for document in cursor})


async def trained_steps(store: Store, records: Sequence[str]) -> dict[str, list[int]]:
    """{record: the steps that trained its data}, of all policies."""
    fields = {"record": 1, "trained_steps": 1}
    steps: dict[str, list[int]] = {}
    cursor = store.database["record_data"].find({"record": {"$in": list(records)}}, fields, max_time_ms=PAGE_TIME_MS)
    async for document in cursor:
        steps[document["record"]] = sorted({*steps.get(document["record"], []), *document.get("trained_steps", [])})
    return steps


async def last_step(store: Store, policy: str, starts: Sequence[int]) -> int:
    """The highest step that the policy's newest trainer took, or the one that it began from. `starts`: as `Run.starts`."""
    where: Document = {"policy": policy, "trainer_generation": len(starts)}
    newest = await store.database["trained_steps"].find_one(
        where, {"step": 1}, sort=[("step", -1)], max_time_ms=PAGE_TIME_MS
    )
    return int(newest["step"]) if newest else starts[-1]
