"""Verbs on records and dispatches: what happened in an episode, written as it happens, by the attempt that owns it.

A record's id holds its attempt, so an attempt that lost its lease can only ever write to its own record, which nobody
reads: settlement follows the slots' `record_id`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Claim, DispatchedSamplingTask, Record
from shared.errors import IllegalMove
from shared.states import RECORD_MOVES, RecordStatus, origins
from shared.store.pipelines import NOW, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]


@survives_outages
class RecordVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._records: AsyncCollection[Document] = database["records"]
        self._dispatches: AsyncCollection[Document] = database["dispatched_sampling_tasks"]

    async def ensure_indexes(self) -> None:
        await self._records.create_index([("task", 1), ("traj_id", 1), ("attempt", 1)], name="identity", unique=True)
        await self._records.create_index([("split", 1), ("status", 1), ("finished_at", -1)], name="recent")
        await self._records.create_index([("last_trained_step", 1)], name="trained")
        await self._dispatches.create_index([("record", 1), ("turn", 1)], name="record")

    async def start(self, claim: Claim, worker: str) -> Record:
        """The record of a freshly claimed slot."""
        record = Record(
            id=claim.record_id,
            task=claim.task.id,
            traj_id=claim.traj_id,
            attempt=claim.attempt,
            tid=claim.task.tid,
            split=claim.task.split,
            policy=claim.task.policy,
            source=claim.task.source,
            worker=worker,
        )
        await self._upsert(self._records, record.to_mongo())
        return record

    async def open_dispatch(self, dispatch: DispatchedSamplingTask) -> None:
        """Write a request before it is sent."""
        await self._upsert(self._dispatches, dispatch.to_mongo())

    async def close_dispatch(self, dispatch: DispatchedSamplingTask) -> None:
        """Write the answer, the tool calls and the end of a request."""
        values = dispatch.to_mongo()
        for name in ("_id", "created_at", "finished_at", "prompt_ids", "messages", "record", "turn", "parent"):
            del values[name]
        await self._dispatches.update_one({"_id": dispatch.id}, [{"$set": {**literals(values), "finished_at": NOW}}])

    async def move(self, record_id: str, to: RecordStatus, values: Mapping[str, Any]) -> None:
        """Move a record and write `values` with it. Raises IllegalMove where the state machine has no such move."""
        result = await self._records.update_one(
            {"_id": record_id, "status": {"$in": origins(RECORD_MOVES, to)}},
            [{"$set": {**literals(dict(values)), "status": to.value, "finished_at": NOW}}],
        )
        if result.matched_count == 0:
            found = await self._records.find_one({"_id": record_id}, {"status": 1})
            if found is None or found["status"] != to:  # the same move again changes nothing
                raise IllegalMove(f"record {record_id}: {found and found['status']} -> {to}; not among the legal moves")

    async def settle_group(
        self, task_id: str, statuses: Mapping[str, RecordStatus], advantages: Mapping[str, float]
    ) -> None:
        """Give the group's records their last state and advantage; every other attempt of the task is abandoned."""
        updates = [
            UpdateOne({"_id": rid}, {"$set": {"status": status.value, "advantage": advantages.get(rid)}})
            for rid, status in statuses.items()
        ]
        if updates:
            await self._records.bulk_write(updates, ordered=False)
        open_states = [s.value for s in (RecordStatus.RUNNING, RecordStatus.COMPLETED, RecordStatus.SCORED)]
        await self._records.update_many(
            {"task": task_id, "_id": {"$nin": list(statuses)}, "status": {"$in": open_states}},
            {"$set": {"status": RecordStatus.ABANDONED.value}},
        )

    async def set_dispatch_results(self, results: Mapping[str, tuple[float, float]]) -> None:
        """{dispatch id: (score, advantage)}."""
        if results:
            await self._dispatches.bulk_write(
                [
                    UpdateOne({"_id": did}, {"$set": {"score": score, "advantage": advantage}})
                    for did, (score, advantage) in results.items()
                ],
                ordered=False,
            )

    async def get(self, record_id: str) -> Record | None:
        document = await self._records.find_one({"_id": record_id})
        return None if document is None else Record.from_mongo(document)

    async def get_many(self, record_ids: Sequence[str]) -> dict[str, Record]:
        cursor = self._records.find({"_id": {"$in": list(record_ids)}})
        return {d["_id"]: Record.from_mongo(d) async for d in cursor}

    async def dispatches_of(self, record_ids: Sequence[str]) -> dict[str, list[DispatchedSamplingTask]]:
        """{record id: its dispatches in order}."""
        cursor = self._dispatches.find({"record": {"$in": list(record_ids)}}).sort([("record", 1), ("_id", 1)])
        found: dict[str, list[DispatchedSamplingTask]] = {rid: [] for rid in record_ids}
        async for document in cursor:
            dispatch = DispatchedSamplingTask.from_mongo(document)
            found[dispatch.record].append(dispatch)
        for dispatches in found.values():
            dispatches.sort(key=lambda d: int(d.id.rsplit(":", 1)[1]))
        return found

    async def recent(self, limit: int, *, split: str | None = None) -> list[Record]:
        """The records that ended last."""
        where: Document = {"finished_at": {"$ne": None}} | ({} if split is None else {"split": split})
        cursor = self._records.find(where).sort([("finished_at", -1)]).limit(limit)
        return [Record.from_mongo(d) async for d in cursor]

    async def count_by_status(self) -> dict[str, int]:
        cursor = await self._records.aggregate([{"$group": {"_id": "$status", "n": {"$sum": 1}}}])
        return {row["_id"]: row["n"] async for row in cursor}

    @staticmethod
    async def _upsert(collection: AsyncCollection[Document], document: Document) -> None:
        """Insert once, with the server's time; a repeat changes nothing."""
        values = {k: v for k, v in document.items() if k not in ("_id", "created_at")}
        await collection.update_one(
            {"_id": document["_id"]},
            [
                {
                    "$replaceWith": {
                        "$cond": [
                            {"$eq": [{"$type": "$created_at"}, "date"]},
                            "$$ROOT",
                            {"_id": document["_id"], **literals(values), "created_at": NOW},
                        ]
                    }
                }
            ],
            upsert=True,
        )
