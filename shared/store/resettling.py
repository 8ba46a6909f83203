"""Verbs on groups that are taken from one run into another, to be settled there again (`tandem resettle`).

A group's task is written last: without it the group counts as missing, and is written again. What is there stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.states import OVER, PLAYED, TaskStatus
from shared.names import TRAIN_SPLIT
from shared.store.pipelines import literal
from shared.store.retry import survives_outages
from shared.store.runs import RUN_ID

Document = dict[str, Any]
PlayedGroup = dict[str, list[Document]]  # by collection: its documents as they are stored
WRITTEN = ("tool_schemas", "dispatched_sampling_tasks", "records", "tasks")  # in this order


@survives_outages
class ResettlingVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database

    async def claim_settings(self, name: str, settings: str) -> None:
        """Note settings, by their id, in the run's document, unless some are there."""
        lacking = {"_id": RUN_ID, f"settings.{name}": {"$exists": False}}
        await self._database["runs"].update_one(lacking, [{"$set": {f"settings.{name}": literal(settings)}}])

    async def played(self, policy: str) -> list[str]:
        """Training tasks whose episodes have all ended, in the order in which they were opened."""
        where = {"policy": policy, "split": TRAIN_SPLIT, "status": {"$in": PLAYED}}
        return [task["_id"] async for task in self._database["tasks"].find(where, {"_id": 1}).sort([("seq", 1)])]

    async def group(self, task_id: str) -> PlayedGroup:
        """All documents of a group but its training data."""
        records = await self._database["records"].find({"task": task_id}).sort([("_id", 1)]).to_list()
        of_records = {"record": {"$in": [record["_id"] for record in records]}}
        dispatches = await self._database["dispatched_sampling_tasks"].find(of_records).sort([("_id", 1)]).to_list()
        named = sorted({str(dispatch.get("tools_hash", "")) for dispatch in dispatches})
        return {
            "tool_schemas": await self._database["tool_schemas"].find({"_id": {"$in": named}}).to_list(),
            "dispatched_sampling_tasks": dispatches,
            "records": records,
            "tasks": await self._database["tasks"].find({"_id": task_id}).to_list(),
        }

    async def write(self, group: Mapping[str, Sequence[Document]]) -> None:
        """Insert what lacks, the task last."""
        for name in WRITTEN:
            writes = [UpdateOne({"_id": d["_id"]}, {"$setOnInsert": d}, upsert=True) for d in group.get(name, ())]
            if writes:
                await self._database[name].bulk_write(writes, ordered=False)

    async def scores(self, task_id: str) -> dict[str, float | None]:
        """{record: its score}."""
        cursor = self._database["records"].find({"task": task_id}, {"score": 1})
        return {record["_id"]: record.get("score") async for record in cursor}

    async def count_unsettled(self, policy: str) -> int:
        return await self._database["tasks"].count_documents({"policy": policy, "status": TaskStatus.COMPLETED.value})

    async def outcomes(self, policy: str, task_ids: Sequence[str]) -> dict[str, Document]:
        """{task: its status, outcome and scores}, of these that are settled."""
        where: Document = {"_id": {"$in": list(task_ids)}, "policy": policy, "status": {"$in": OVER}}
        cursor = self._database["tasks"].find(where, {"status": 1, "outcome": 1, "slots.score": 1})
        return {task["_id"]: task async for task in cursor}
