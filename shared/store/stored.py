"""Read-only queries of the audit, over whole collections.

Documents are returned as stored, since the audit must also see those that no longer fit their model.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.states import NEVER_OPENED

Document = dict[str, Any]
REQUEST_TIMES = ["record", "service", "usage", "weight_versions", "tool_calls.duration_s", "created_at", "finished_at"]


class StoredDocuments:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database
        self._tasks = database["tasks"]
        self._records = database["records"]
        self._dispatches = database["dispatched_sampling_tasks"]
        self._data = database["record_data"]

    def opened_tasks(self) -> AsyncIterator[Document]:
        """Tasks that were opened and not skipped."""
        return aiter(self._tasks.find({"status": {"$nin": NEVER_OPENED}}).sort([("_id", 1)]))

    async def records(self, ids: Sequence[str]) -> dict[str, Document]:
        return {d["_id"]: d async for d in self._records.find({"_id": {"$in": list(ids)}})}

    async def tasks(self, ids: Sequence[str]) -> dict[str, Document]:
        return {d["_id"]: d async for d in self._tasks.find({"_id": {"$in": list(ids)}})}

    async def with_data(self, record_ids: Sequence[str]) -> set[str]:
        """Those of `record_ids` that have training data."""
        cursor = self._data.find({"record": {"$in": list(record_ids)}}, {"record": 1})
        return {d["record"] async for d in cursor}

    def all_data(self) -> AsyncIterator[Document]:
        """Every record's training data, in small batches because they are large."""
        return aiter(self._data.find().sort([("_id", 1)]).batch_size(32))

    async def dispatches(self, record_ids: Sequence[str]) -> dict[str, list[Document]]:
        by_record: dict[str, list[Document]] = {rid: [] for rid in record_ids}
        async for document in self._dispatches.find({"record": {"$in": list(record_ids)}}):
            by_record[document["record"]].append(document)
        return by_record

    async def request_times(self, record_ids: Sequence[str]) -> dict[str, list[Document]]:
        """By record: when its requests were sent, and their lengths, in order; without texts and token ids."""
        by_record: dict[str, list[Document]] = {rid: [] for rid in record_ids}
        cursor = self._dispatches.find({"record": {"$in": list(record_ids)}}, REQUEST_TIMES)
        async for document in cursor.sort([("record", 1), ("turn", 1)]):
            by_record[document["record"]].append(document)
        return by_record

    async def named_tools(self) -> AsyncIterator[Document]:
        """For every tool list that requests name: {"_id": its hash, "requests": their number, "first": one of them}."""
        group = {"_id": "$tools_hash", "requests": {"$sum": 1}, "first": {"$min": "$_id"}}
        stages: list[Document] = [{"$match": {"tools_hash": {"$gt": ""}}}, {"$group": group}, {"$sort": {"_id": 1}}]
        async for row in await self._dispatches.aggregate(stages, allowDiskUse=True):
            yield row

    async def tool_schemas(self, hashes: Sequence[str]) -> dict[str, Document]:
        cursor = self._database["tool_schemas"].find({"_id": {"$in": list(hashes)}})
        return {document["_id"]: document async for document in cursor}

    async def all_rules(self) -> AsyncIterator[Document]:
        async for document in self._database["run_rules"].find():
            yield document

    async def rules_of_groups(self) -> AsyncIterator[Document]:
        """For every number that groups have: {"policy", "rules", "groups": their number, "first": one of them}."""
        group = {"_id": {"policy": "$policy", "rules": "$rules"}, "groups": {"$sum": 1}, "first": {"$min": "$_id"}}
        stages: list[Document] = [{"$match": {"rules": {"$type": "number"}}}, {"$group": group}, {"$sort": {"_id": 1}}]
        async for row in await self._tasks.aggregate(stages):
            yield row["_id"] | {"groups": row["groups"], "first": row["first"]}

    async def groups(self) -> AsyncIterator[Document]:
        """For every task and policy with training data that settlement did not drop: {"_id": {"task", "policy"},
        "records": their number, "sizes": [group_size]}.
        """
        group = {
            "_id": {"task": "$task", "policy": "$policy"},
            "records": {"$sum": 1},
            "sizes": {"$addToSet": "$group_size"},
        }
        async for row in await self._data.aggregate([{"$match": {"group_size": {"$gt": 0}}}, {"$group": group}]):
            yield row

    async def marked_groups(self, policy: str) -> dict[int, dict[str, int]]:
        """{step: {task: number of its records with the step's mark}}."""
        stages: list[Document] = [
            {"$match": {"policy": policy, "trained_count": {"$gt": 0}}},
            {"$unwind": "$trained_steps"},
            {"$group": {"_id": {"step": "$trained_steps", "task": "$task"}, "n": {"$sum": 1}}},
        ]
        marked: dict[int, dict[str, int]] = {}
        async for row in await self._data.aggregate(stages, allowDiskUse=True):
            marked.setdefault(int(row["_id"]["step"]), {})[row["_id"]["task"]] = row["n"]
        return marked

    async def slots_trained_twice(self) -> list[list[str]]:
        """Ids of trained records of every slot with more than one."""
        group = {"_id": {"task": "$task", "traj_id": "$traj_id"}, "ids": {"$push": "$_id"}}
        return await self._more_than_one("records", [{"$match": {"trained_count": {"$gt": 0}}}, {"$group": group}])

    async def slots_with_two_data(self) -> list[list[str]]:
        """Ids of training data of every slot with more than one per policy. A record's id without its attempt names the slot."""
        slot = {"slot": {"$regexFind": {"input": "$record", "regex": "^(.*):"}}, "policy": "$policy"}
        return await self._more_than_one("record_data", [{"$group": {"_id": slot, "ids": {"$push": "$_id"}}}])

    async def _more_than_one(self, collection: str, stages: Sequence[Document]) -> list[list[str]]:
        cursor = await self._database[collection].aggregate(
            [*stages, {"$match": {"ids.1": {"$exists": True}}}], allowDiskUse=True
        )
        return [sorted(row["ids"]) async for row in cursor]
