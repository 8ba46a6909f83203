"""Read-only queries of the audit, over whole collections.

Documents are returned as stored, since the audit must also see those that no longer fit their model.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.states import DECIDED, NEVER_OPENED, OPENED
from shared.names import SPLITS

Document = dict[str, Any]
REQUEST_TIMES = ["record", "service", "usage", "weight_versions", "tool_calls.duration_s", "created_at", "finished_at"]
IDS_AT_ONCE = 10_000


# 21 methods: one query each, of the audit and of the simulator of recorded runs
class StoredDocuments:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database
        self._tasks = database["tasks"]
        self._records = database["records"]
        self._dispatches = database["dispatched_sampling_tasks"]
        self._data = database["record_data"]

    # ------------------------------------------------------------------ groups

    async def groups(self) -> AsyncIterator[Any]:
        """Ids of tasks that were opened and not skipped, and those that records or training data name, in order."""
        streams = [self._opened(), _distinct_tasks(self._records), _distinct_tasks(self._data)]
        heads = [await anext(stream, None) for stream in streams]
        odd: list[Any] = []  # no texts: in place of an id
        while any(head is not None for head in heads):
            for k, head in enumerate(heads):
                if head is not None and not isinstance(head["_id"], str):
                    odd += [] if head["_id"] in odd else [head["_id"]]
                    heads[k] = await anext(streams[k], None)
                    break
            else:
                first = min(head["_id"] for head in heads if head is not None)
                yield first
                for k, head in enumerate(heads):
                    if head is not None and head["_id"] == first:
                        heads[k] = await anext(streams[k], None)
        for one in odd:
            yield one

    def _opened(self) -> AsyncIterator[Document]:
        cursor = self._tasks.find({"status": {"$nin": NEVER_OPENED}}, {"_id": 1}).sort([("_id", 1)])
        return aiter(cursor.batch_size(IDS_AT_ONCE))

    async def under_way(self) -> list[str]:
        """Ids of tasks that were opened and are not settled, by the index of claims."""
        policies = await self._tasks.distinct("policy")
        where = {"policy": {"$in": policies}, "split": {"$in": list(SPLITS)}, "status": {"$in": OPENED}}
        return [document["_id"] async for document in self._tasks.find(where, {"_id": 1})]

    async def last_settled(self, before: timedelta) -> tuple[datetime, list[str]] | None:
        """When the last group was settled, and the ids of those that were within the time `before` that; None: none was."""
        last = await self._tasks.find_one({"settled_at": {"$ne": None}}, {"settled_at": 1}, sort=[("settled_at", -1)])
        if last is None:
            return None
        since = {"settled_at": {"$gte": last["settled_at"] - before, "$lte": last["settled_at"]}}
        recent = [document["_id"] async for document in self._tasks.find(since, {"_id": 1})]
        return last["settled_at"], recent

    def settled_tasks(self, policy: str, split: str) -> AsyncIterator[Document]:
        """With and without training data."""
        where = {"policy": policy, "split": split, "status": {"$in": DECIDED}}
        return aiter(self._tasks.find(where))

    async def count_tasks(self) -> int:
        """About."""
        return await self._tasks.estimated_document_count()

    async def count_opened(self) -> int:
        """Tasks that were opened and not skipped; reads all of them."""
        return await self._tasks.count_documents({"status": {"$nin": NEVER_OPENED}})

    async def tasks(self, ids: Sequence[Any]) -> dict[Any, Document]:
        return {d["_id"]: d async for d in self._tasks.find({"_id": {"$in": list(ids)}}).sort([("_id", 1)])}

    async def records_of(self, tasks: Sequence[Any]) -> dict[str, Document]:
        """All attempts at these tasks."""
        cursor = self._records.find({"task": {"$in": list(tasks)}})
        return {d["_id"]: d async for d in cursor.batch_size(IDS_AT_ONCE)}

    async def records(self, ids: Sequence[str]) -> dict[str, Document]:
        return {d["_id"]: d async for d in self._records.find({"_id": {"$in": list(ids)}})}

    async def data(self, tasks: Sequence[Any]) -> list[Document]:
        """Training data of these tasks, in the order of the ids."""
        cursor = self._data.find({"task": {"$in": list(tasks)}}).batch_size(IDS_AT_ONCE)
        return sorted(await cursor.to_list(), key=lambda d: str(d["_id"]))

    async def with_data(self, record_ids: Sequence[str]) -> set[str]:
        """Those of `record_ids` that have training data."""
        cursor = self._data.find({"record": {"$in": list(record_ids)}}, {"record": 1})
        return {d["record"] async for d in cursor}

    async def dispatches(self, record_ids: Sequence[str]) -> dict[str, list[Document]]:
        return await self._dispatches_of(record_ids, None)

    async def sampled_versions(self, record_ids: Sequence[str]) -> dict[str, list[Document]]:
        """Of their dispatches only `policy` and `weight_versions`."""
        return await self._dispatches_of(record_ids, ["record", "policy", "weight_versions"])

    async def _dispatches_of(
        self, record_ids: Sequence[str], fields: Sequence[str] | None
    ) -> dict[str, list[Document]]:
        by_record: dict[str, list[Document]] = {rid: [] for rid in record_ids}
        cursor = self._dispatches.find({"record": {"$in": list(by_record)}}, fields)
        async for document in cursor.batch_size(IDS_AT_ONCE):
            by_record[document["record"]].append(document)
        return by_record

    async def request_times(self, record_ids: Sequence[str]) -> dict[str, list[Document]]:
        """By record: when its requests were sent, and their lengths, in order; without texts and token ids."""
        by_record: dict[str, list[Document]] = {rid: [] for rid in record_ids}
        cursor = self._dispatches.find({"record": {"$in": list(record_ids)}}, REQUEST_TIMES)
        async for document in cursor.sort([("record", 1), ("turn", 1)]):
            by_record[document["record"]].append(document)
        return by_record

    # ------------------------------------------------------------------ tools and rules

    async def named_tools(self, tasks: Sequence[str] | None = None) -> AsyncIterator[Document]:
        """For every tool list that requests name: {"_id": its hash, "requests": their number, "first": one of them}. `tasks`:
        only requests of these."""
        group = {"_id": "$tools_hash", "requests": {"$sum": 1}, "first": {"$min": "$_id"}}
        where: Document = {"tools_hash": {"$gt": ""}}
        if tasks is not None:
            records = self._records.find({"task": {"$in": list(tasks)}}, {"_id": 1})
            where["record"] = {"$in": [document["_id"] async for document in records]}
        stages: list[Document] = [{"$match": where}, {"$group": group}, {"$sort": {"_id": 1}}]
        async for row in await self._dispatches.aggregate(stages, allowDiskUse=True):
            yield row

    async def tool_schemas(self, hashes: Sequence[str]) -> dict[str, Document]:
        cursor = self._database["tool_schemas"].find({"_id": {"$in": list(hashes)}})
        return {document["_id"]: document async for document in cursor}

    async def all_rules(self) -> AsyncIterator[Document]:
        async for document in self._database["run_rules"].find():
            yield document

    async def rules_of_groups(self, tasks: Sequence[str] | None = None) -> AsyncIterator[Document]:
        """For every number that groups have: {"policy", "rules", "groups": their number, "first": one of them}. `tasks`: only of
        these."""
        group = {"_id": {"policy": "$policy", "rules": "$rules"}, "groups": {"$sum": 1}, "first": {"$min": "$_id"}}
        where: Document = {"rules": {"$type": "number"}} | ({} if tasks is None else {"_id": {"$in": list(tasks)}})
        stages: list[Document] = [{"$match": where}, {"$group": group}, {"$sort": {"_id": 1}}]
        async for row in await self._tasks.aggregate(stages):
            yield row["_id"] | {"groups": row["groups"], "first": row["first"]}


async def _distinct_tasks(collection: AsyncCollection[Document]) -> AsyncIterator[Document]:
    """{"_id": task}, in order, by an index that begins with `task`."""
    stages: list[Document] = [{"$sort": {"task": 1}}, {"$group": {"_id": "$task"}}, {"$sort": {"_id": 1}}]
    async for row in await collection.aggregate(stages, allowDiskUse=True, batchSize=IDS_AT_ONCE):
        yield row
