"""Verbs on training data: settlement writes it, the trainer borrows whole groups and marks the ones it used.

ready ─claim(trainer_generation, step)─▶ ready, borrowed ─commit(step)─▶ trained (or ready again below max_trained_count)
  └─▶ stale | dropped                                └─ a resume from step k undoes every mark above k

`trainer_generation` fences off a replaced trainer; `revision` fences off outdated marks.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field
from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import DataClaim, DBRecordData, task_of
from shared.documents.base import Document as Model
from shared.documents.states import DATA_MOVES, DataStatus, origins
from shared.errors import MalformedDocument
from shared.store.counting import count_by
from shared.store.incomplete_groups import IncompleteGroups
from shared.store.indexes import add_index, with_index
from shared.store.malformed import MalformedVerbs
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages
from shared.store.signals import Signal, Signals
from shared.store.together import BatchedUpdates

Document = dict[str, Any]


class ReadyRow(Model):
    """The fields of one record's data that group selection and commits read."""

    collection: ClassVar[str] = "record_data"

    id: str = Field(alias="_id")
    task: str
    seq: int
    group_size: int
    min_version: int
    max_version: int
    versions: list[int] = Field([])
    num_tokens: int
    num_trained_tokens: int
    duration_s: float = 0.0
    trained_steps: list[int] = Field([])
    revision: int = 0


GROUP_FIELDS = [name for name in ReadyRow.model_fields if name != "id"]
MARKS = ("trained_count", "last_trained_step", "revision")
UNDONE_AT_ONCE = 1000
OLDEST_COUNTED = 10_000  # records
READ_AT_ONCE = 500  # records; by default the second batch has up to 16 MB


@survives_outages
class RecordDataVerbs:
    def __init__(self, database: AsyncDatabase[Document], malformed: MalformedVerbs, signals: Signals) -> None:
        self._malformed, self._signals = malformed, signals
        self._data: AsyncCollection[Document] = database["record_data"]
        self._records: AsyncCollection[Document] = database["records"]
        self._new = BatchedUpdates(self._data)
        self._incomplete: defaultdict[str, IncompleteGroups] = defaultdict(IncompleteGroups)  # by policy

    async def ensure_indexes(self) -> None:
        await add_index(self._data, [("policy", 1), ("status", 1), ("claim", 1), ("seq", 1)], name="stream")
        await add_index(
            self._data, [("policy", 1), ("status", 1), ("claim", 1), ("trained_count", 1), ("seq", 1)], name="epochs"
        )
        await add_index(
            self._data, [("policy", 1), ("claim.trainer_generation", 1), ("claim.step", 1)], name="borrowed"
        )
        await add_index(self._data, [("trained_steps", 1)], name="steps")
        await add_index(self._data, [("task", 1)], name="group")
        await add_index(self._data, [("record", 1)], name="record")

    # ------------------------------------------------------------------ settlement

    async def write_group(self, group: Sequence[DBRecordData]) -> None:
        """Insert a group's data. Existing documents are unchanged."""
        if group:
            new = [UpdateOne({"_id": d.id}, insert_once(d.to_mongo()), upsert=True) for d in group]
            await self._new.ask(new)  # the settlement's end, which follows, sends the signal

    # ------------------------------------------------------------------ the trainer's stream

    async def ready_groups(
        self, policy: str, limit: int, *, trained_until: int | None = None, least_trained_first: bool = False
    ) -> list[dict[str, Any]]:
        """Whole groups that are not borrowed, oldest first: [{"_id": task, "seq", "versions", "records": [ids], ...}].

        `versions`: all that sampled its trained tokens; empty if nothing of the group is trained, which then has no staleness.
        Tokens and `duration_s` are sums over its records.
        `trained_until`: excludes groups that a later step has trained. `least_trained_first`: order by it before age.

        Reads in index order and stops at the last requested group, so the cost does not grow with the waiting data. A group that
        stays incomplete is read every `REREAD_S` alone.
        A group with malformed data cannot be trained: it is dropped, with the reason.
        """
        match: Document = {"policy": policy, "status": DataStatus.READY, "claim": None}
        if trained_until is not None:
            match["$or"] = [{"last_trained_step": None}, {"last_trained_step": {"$lte": trained_until}}]
        incomplete = self._incomplete[policy]
        if passed_over := incomplete.passed_over():
            match["seq"] = {"$nin": passed_over}
        order = [("trained_count", 1), ("seq", 1)] if least_trained_first else [("seq", 1)]
        by_task: dict[str, list[Document]] = {}
        groups: list[dict[str, Any]] = []
        async with self._data.find(match, GROUP_FIELDS).sort(order).batch_size(READ_AT_ONCE) as cursor:
            async for document in cursor:
                if not await self._fits(policy, document):
                    continue
                group = by_task.setdefault(document["task"], [])
                group.append(document)
                if len(group) == document["group_size"]:
                    groups.append(_summary(group))
                    if len(groups) == limit:
                        break
        rest = [group for group in by_task.values() if len(group) < group[0]["group_size"]]
        incomplete.note({group[0]["seq"]: len(group) for group in rest}, passed_over)
        return groups

    async def _fits(self, policy: str, document: Document) -> bool:
        """Validate a document; returns False if its group was dropped."""
        try:
            ReadyRow.from_mongo(document)
        except MalformedDocument as exc:
            task = document.get("task")
            if not isinstance(task, str):
                task = _task_of(str(document["_id"]), policy)
            group = {"$or": [{"_id": document["_id"]}, {"task": task}]}  # the rest of the group is never complete
            await self._data.update_many(
                {**group, "policy": policy, "status": DataStatus.READY, "claim": None},
                {"$set": {"status": DataStatus.DROPPED.value, "reason": f"malformed: {exc}"}},
            )
            await self._malformed.note(exc)
            return False
        return True

    async def claim(self, record_ids: Sequence[str], claim: DataClaim) -> int:
        """Borrow records for a step; returns their number. Other steps do not see them until they are committed or returned.

        Counts records already borrowed for the same step, but not those that the step has trained.
        """
        result = await self._data.update_many(
            {
                "_id": {"$in": list(record_ids)},
                "status": DataStatus.READY,
                "claim": {"$in": [None, claim.to_mongo()]},
                "trained_steps": {"$ne": claim.step},
            },
            {"$set": {"claim": claim.to_mongo()}},
        )
        return result.matched_count

    async def give_back(self, policy: str, claim: DataClaim) -> int:
        """Release the data borrowed for a step that does not begin; returns the number of released records."""
        result = await self._data.update_many(_borrowed(policy, claim), {"$set": {"claim": None}})
        return result.modified_count

    async def load(self, record_ids: Sequence[str]) -> list[DBRecordData]:
        """Load data in the order of `record_ids`. Raises KeyError for an id that is not stored."""
        cursor = self._data.find({"_id": {"$in": list(record_ids)}})
        by_id = {d["_id"]: DBRecordData.from_mongo(d) async for d in cursor}
        return [by_id[rid] for rid in record_ids]

    async def set_aside(
        self, record_ids: Sequence[str], status: DataStatus, reason: str, *, borrowed: DataClaim | None = None
    ) -> None:
        """Mark records that `borrowed` holds (None: unborrowed ones) as stale or dropped, with the reason. They stay counted."""
        await self._data.update_many(
            {
                "_id": {"$in": list(record_ids)},
                "status": {"$in": origins(DATA_MOVES, status)},
                "claim": borrowed and borrowed.to_mongo(),
            },
            {"$set": {"status": status.value, "reason": reason, "claim": None}},
        )
        self._signals.send(Signal.DATA)

    async def commit_step(self, policy: str, claim: DataClaim, *, max_trained_count: int) -> list[str]:
        """After the optimizer step: mark all data borrowed for it as used. Idempotent.

        Returns the ids of the used data. Records of the policy's own tasks get `trained_count` and `last_trained_step`, so that
        either collection can be queried; in an episode of several policies only the task's policy marks the record.
        """
        await self._data.update_many(
            _borrowed(policy, claim),
            _mark({"$setUnion": ["$trained_steps", [claim.step]]}, max_trained_count),
        )
        return await self._copy_marks({"policy": policy, "last_trained_step": claim.step})

    async def _copy_marks(self, where: Document) -> list[str]:
        """Copy the marks of matching data to records of the same policy; returns the data's ids."""
        marked = await self._data.find(where, ["record", "policy", *MARKS]).to_list()
        if marked:
            await self._records.bulk_write([_mark_record(d, {name: d[name] for name in MARKS}) for d in marked])
        return [d["_id"] for d in marked]

    async def release_claims(self, policy: str, trainer_generation: int) -> int:
        """Release data borrowed by earlier trainer generations; returns the number of records."""
        result = await self._data.update_many(
            {"policy": policy, "claim.trainer_generation": {"$lt": trainer_generation}}, {"$set": {"claim": None}}
        )
        return result.modified_count

    async def rewind(self, policy: str, step: int, *, max_trained_count: int) -> int:
        """Undo every mark above `step`, whose steps left the surviving history. Returns the number of records.

        Stale data becomes ready and is checked again. Raises MalformedDocument for malformed marks, which cannot be undone.
        """
        where: Document = {"policy": policy, "last_trained_step": {"$gt": step}}
        names = ["record", "policy", "trained_steps", "revision"]
        undone = 0
        while batch := await self._data.find(where, names).limit(UNDONE_AT_ONCE).to_list():
            # Records first: after a crash in between, the data's marks still show what remains to be undone.
            await self._records.bulk_write([_mark_record(d, _marks_until(step, d)) for d in batch])
            undone += await self._undo(batch, step, max_trained_count)
        await self._data.update_many(
            {"policy": policy, "status": DataStatus.STALE}, {"$set": {"status": DataStatus.READY, "reason": None}}
        )
        return undone

    async def _undo(self, batch: Sequence[Document], step: int, max_trained_count: int) -> int:
        """Undo marks only at the revision that was read: a late undo does not affect data trained since."""
        remaining = {"$filter": {"input": "$trained_steps", "as": "t", "cond": {"$lte": ["$$t", step]}}}
        change = _mark(remaining, max_trained_count)
        result = await self._data.bulk_write(
            [UpdateOne({"_id": d["_id"], "revision": d.get("revision")}, change) for d in batch], ordered=False
        )
        return result.modified_count

    async def count_above(self, policy: str, step: int) -> int:
        """Records with a mark above `step`."""
        return await self._data.count_documents({"policy": policy, "last_trained_step": {"$gt": step}})

    # ------------------------------------------------------------------ questions

    async def count_by_status(self, policy: str | None = None, most: int | None = None) -> dict[str, int]:
        """`most`: a larger number stands for more than that; None: all are counted."""
        counts: Counter[str] = Counter()
        where = {} if policy is None else {"policy": policy}
        for of, n in await count_by(self._data, "stream", ("policy", "status"), where, most):
            counts[of["status"]] += n
        return dict(counts)

    async def count_ready_groups(self, policy: str) -> int:
        """Number of complete waiting groups among the `OLDEST_COUNTED` oldest records, which bounds the cost."""
        match = {"policy": policy, "status": DataStatus.READY, "claim": None}
        group = {"_id": "$task", "size": {"$first": "$group_size"}, "n": {"$sum": 1}}
        oldest: list[Document] = [
            {"$match": match},
            {"$sort": {"seq": 1}},
            {"$limit": OLDEST_COUNTED},
            {"$group": group},
        ]
        stages = [*oldest, {"$match": {"$expr": {"$eq": ["$n", "$size"]}}}, {"$count": "n"}]
        # Named: with much data waiting the planner takes an index that is not in the order of `seq`, and reads all of it.
        cursor = await with_index("stream", lambda by: self._data.aggregate(stages, **by))
        rows = await cursor.to_list()
        return int(rows[0]["n"]) if rows else 0

    async def find(self, where: Mapping[str, Any], limit: int = 0) -> list[DBRecordData]:
        cursor = self._data.find(dict(where)).sort([("seq", 1), ("_id", 1)]).limit(limit)
        return [DBRecordData.from_mongo(d) async for d in cursor]


def _task_of(identity: str, policy: str) -> str:
    """The task's id, from the id of its data (`shared.documents.data_id`)."""
    record = identity if identity.startswith(f"{policy}:") else identity.removesuffix(f":{policy}")
    return task_of(record)


def _summary(group: Sequence[Document]) -> dict[str, Any]:
    with_loss = [d for d in group if d["min_version"] >= 0]
    return {
        "_id": group[0]["task"],
        "seq": group[0]["seq"],
        "versions": sorted(
            {v for d in with_loss for v in (d["min_version"], *d.get("versions", ()), d["max_version"])}
        ),
        "num_tokens": sum(d["num_tokens"] for d in group),
        "num_trained_tokens": sum(d["num_trained_tokens"] for d in group),
        "duration_s": sum(d.get("duration_s", 0.0) for d in group),
        "records": [d["_id"] for d in group],
    }


def _borrowed(policy: str, claim: DataClaim) -> Document:
    return {"policy": policy, "claim.trainer_generation": claim.trainer_generation, "claim.step": claim.step}


def _mark_record(data: Document, marks: Document) -> UpdateOne:
    """Set the record's marks unless it has newer ones."""
    later = {"$not": {"$gte": marks["revision"]}}
    return UpdateOne({"_id": data["record"], "policy": data["policy"], "revision": later}, {"$set": marks})


def _marks_until(step: int, data: Document) -> Document:
    earlier = data.get("trained_steps")
    if not isinstance(earlier, list) or not all(isinstance(trained, int) for trained in earlier):
        raise MalformedDocument(
            "record_data",
            str(data["_id"]),
            f"trained_steps: found {str(earlier)[:100]!r}; expected a list of step numbers",
        )
    steps = [trained for trained in data["trained_steps"] if trained <= step]
    marks = (len(steps), max(steps, default=None), data.get("revision", 0) + 1)
    return dict(zip(MARKS, marks, strict=True))


def _mark(steps: Document, max_trained_count: int) -> list[Document]:
    """Stages that set `trained_steps` and the fields derived from it."""
    count = {"$size": "$trained_steps"}
    return [
        {"$set": {"trained_steps": steps}},
        {
            "$set": {
                "trained_count": count,
                "last_trained_step": {"$max": "$trained_steps"},
                "revision": {"$add": [{"$ifNull": ["$revision", 0]}, 1]},
                "claim": None,
                "status": {
                    "$cond": [
                        {"$gte": [count, max_trained_count]},
                        DataStatus.TRAINED.value,
                        {"$cond": [{"$eq": ["$status", DataStatus.TRAINED]}, DataStatus.READY.value, "$status"]},
                    ]
                },
            }
        },
    ]
