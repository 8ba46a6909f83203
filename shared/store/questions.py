"""Read-only queries of the services and the commands."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Record
from shared.documents.states import CLAIMABLE, OPENED, UNENDED, DataStatus, RecordStatus, SlotStatus, TaskStatus
from shared.names import EVAL_SPLIT, FORK_SPLIT, TRAIN_SPLIT
from shared.store.counting import prefixes
from shared.store.indexes import with_index
from shared.store.malformed import read_or_log
from shared.store.pipelines import NOW
from shared.store.server_runs import run_names

Document = dict[str, Any]
NO_REASON = "no reason given"
MAX_ASKED = 1000  # distinct kinds of tasks that a start reads


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """The scorers, tools and sampler that a number of open tasks need."""

    scorers: tuple[str, ...]
    tools: tuple[str, ...] | None
    exclude_tools: tuple[str, ...]
    num_tasks: int
    sampler: str | None = None


class QuestionVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database
        self._tasks = database["tasks"]
        self._records = database["records"]
        self._dispatches = database["dispatched_sampling_tasks"]
        self._data = database["record_data"]

    async def server_time(self) -> datetime:
        """The server's clock (UTC, naive like every stored time), with which heartbeats are compared."""
        answer = await self._database.command("hello")
        time: datetime = answer["localTime"]
        return time

    async def run_names(self) -> list[str]:
        """Names of databases that may be runs."""
        return await run_names(self._database.client)

    async def has_tasks(self) -> bool:
        return await self._tasks.find_one({}, {"_id": 1}) is not None

    async def has_unended_tasks(self) -> bool:
        """By an index that begins with policy and split: no task that has ended is read."""
        policies = await self._tasks.distinct("policy")
        where = {"policy": {"$in": policies}, "split": {"$in": [TRAIN_SPLIT, EVAL_SPLIT]}, "status": {"$in": UNENDED}}
        return await self._tasks.find_one(where, {"_id": 1}) is not None

    async def seated_records(self, split: str, limit: int) -> list[Record]:
        """Of the split's last `limit` scored records, those that actors played. Reads no more than `limit`."""
        scored = [RecordStatus.SCORED.value, RecordStatus.READY.value, RecordStatus.ABANDONED.value]
        where: Document = {"split": split, "status": {"$in": scored}, "finished_at": {"$ne": None}}

        async def ask(by: Document) -> list[Document]:
            return await self._records.find(where, **by).sort([("finished_at", -1)]).limit(limit).to_list()

        last = await with_index("recent", ask)
        seated = [document for document in last if document.get("actors") and document.get("score") is not None]
        records = (read_or_log(Record, document) for document in seated)
        return [record for record in records if record is not None]

    async def policies(self) -> list[str]:
        """Policies that have weights or tasks."""
        named = set(await self._database["policy_versions"].distinct("policy"))
        return sorted(named | set(await self._tasks.distinct("policy")))

    async def open_demands(self, policy: str) -> list[TaskDemand]:
        """Demands of the claimable tasks, the most frequent first. Reads all of them: use it only at start."""
        kind = {name: f"$payload.{name}" for name in ("scorer", "tools", "exclude_tools", "sampler")}
        kind["scorers"] = "$payload.scorers.name"
        where = {"policy": policy, "status": {"$in": CLAIMABLE}}
        stages: list[Document] = [
            {"$group": {"_id": kind, "n": {"$sum": 1}}},
            {"$sort": {"n": -1}},
            {"$limit": MAX_ASKED},
        ]
        demands = []
        async for row in await self._tasks.aggregate([{"$match": where}, *stages]):
            fields = {name: row["_id"].get(name) for name in kind}
            tools = None if fields["tools"] is None else _texts(fields["tools"])
            scorers = _texts(fields["scorers"]) or _texts([fields["scorer"]])
            sampler = fields["sampler"] if isinstance(fields["sampler"], str) else None
            demands.append(TaskDemand(scorers, tools, _texts(fields["exclude_tools"]), int(row["n"]), sampler))
        return demands

    # ------------------------------------------------------------------ status

    async def set_aside(self, newest: int | None = None) -> dict[str, dict[str, int]]:
        """{stale | dropped: {reason: records}}. `newest`: of each policy and state only so many, the last ones."""
        counts: dict[str, dict[str, int]] = {}
        for policy in await self._data.distinct("policy"):
            for status in (DataStatus.STALE.value, DataStatus.DROPPED.value):
                last = _last({"policy": policy, "status": status}, ("claim", "seq"), newest)
                for row in await _grouped(self._data, "stream", last, "reason"):
                    reason = row["_id"] or NO_REASON
                    of_status = counts.setdefault(status, {})
                    of_status[reason] = of_status.get(reason, 0) + row["n"]
        return counts

    async def abandoned_tasks(self, newest: int | None = None) -> dict[str, int]:
        """{outcome: groups} of groups without training data. `newest`: of each policy and split only so many, the last ones."""
        counts: Counter[str] = Counter()
        for of in await prefixes(self._tasks, ("policy", "split"), {}):
            last = _last({**of, "status": TaskStatus.ABANDONED.value}, ("seq",), newest)
            for row in await _grouped(self._tasks, "by status", last, "outcome"):
                counts[row["_id"] or NO_REASON] += row["n"]
        return dict(counts)

    async def failed_attempts(self, newest: int | None = None) -> list[dict[str, Any]]:
        """Number of failed attempts by termination, each with one example of an error. `newest`: of each split only so many, the
        last ones."""
        found: dict[Any, dict[str, Any]] = {}
        for split in await self._records.distinct("split"):
            last = _last({"split": split, "status": RecordStatus.FAILED.value}, ("finished_at",), newest)
            for row in await _grouped(self._records, "recent", last, "termination", example={"$first": "$error"}):
                kind = {"termination": row["_id"], "attempts": 0, "example": row["example"]}
                found.setdefault(row["_id"], kind)["attempts"] += row["n"]
        return sorted(found.values(), key=lambda kind: (-kind["attempts"], str(kind["termination"])))

    async def slots_in_progress(self, split: str) -> dict[str, int]:
        """{slot status: slots} of groups that are being played or wait for settlement: admission bounds their number."""
        counts: Counter[str] = Counter()
        for policy in await self._tasks.distinct("policy"):
            opened: list[Document] = [
                {"$match": {"policy": policy, "split": split, "status": {"$in": OPENED}}},
                {"$unwind": "$slots"},
            ]
            for row in await _grouped(self._tasks, "by status", opened, "slots.status"):
                counts[row["_id"]] += row["n"]
        return dict(counts)

    async def slots_to_play(self, policy: str, seq_limit: int) -> dict[str, int]:
        """{"open", "leased", "at_gateways"}: slots that may be played: of evaluations, forks, and train tasks below the limit.

        "at_gateways": of those leased, what agents elsewhere play.
        """
        is_elsewhere: Document = {"$eq": [{"$indexOfBytes": [{"$ifNull": ["$slots.worker", ""]}, "gateway:"]}, 0]}
        leased: Document = {"$eq": ["$slots.status", SlotStatus.LEASED.value]}
        admitted: Document = {
            "$or": [{"split": {"$in": [EVAL_SPLIT, FORK_SPLIT]}}, {"split": TRAIN_SPLIT, "seq": {"$lt": seq_limit}}]
        }
        cursor = await self._tasks.aggregate(
            [
                {"$match": {"policy": policy, "status": {"$in": CLAIMABLE}, **admitted}},
                {"$unwind": "$slots"},
                {
                    "$group": {
                        "_id": None,
                        "open": {"$sum": {"$cond": [{"$eq": ["$slots.status", SlotStatus.OPEN.value]}, 1, 0]}},
                        "leased": {"$sum": {"$cond": [leased, 1, 0]}},
                        "at_gateways": {"$sum": {"$cond": [{"$and": [leased, is_elsewhere]}, 1, 0]}},
                    }
                },
            ]
        )
        rows = await cursor.to_list()
        return {name: int(rows[0][name]) if rows else 0 for name in ("open", "leased", "at_gateways")}

    async def ready_versions(self, policy: str) -> dict[int, int]:
        """{oldest weight version: records} of records that wait for the trainer and have a loss."""
        cursor = await self._data.aggregate(
            [
                {"$match": {"policy": policy, "status": DataStatus.READY, "num_trained_tokens": {"$gt": 0}}},
                {"$group": {"_id": "$min_version", "n": {"$sum": 1}}},
                {"$sort": {"_id": 1}},
            ]
        )
        return {int(row["_id"]): int(row["n"]) async for row in cursor}

    async def finished_within(self, window_s: float | None) -> tuple[int, int]:
        """(scored records, tokens that they sampled) of the last `window_s` by the server's clock; None: of the whole run."""
        match: Document = {"score": {"$ne": None}}
        if window_s is not None:
            match["$expr"] = {"$gte": ["$finished_at", {"$subtract": [NOW, round(window_s * 1000)]}]}
        cursor = await self._records.aggregate(
            [{"$match": match}, {"$group": {"_id": None, "episodes": {"$sum": 1}, "tokens": {"$sum": "$num_tokens"}}}]
        )
        rows = await cursor.to_list()
        return (int(rows[0]["episodes"]), int(rows[0]["tokens"])) if rows else (0, 0)

    async def own_metrics(self, split: str, limit: int = 1000) -> dict[str, dict[str, float]]:
        """{source: {name: mean}} of sampler-defined metrics, over the last `limit` scored records of a split."""
        scored = {"$in": [RecordStatus.SCORED, RecordStatus.READY]}
        cursor = await self._records.aggregate(
            [
                {"$match": {"split": split, "status": scored}},
                {"$sort": {"finished_at": -1}},
                {"$limit": limit},
                {"$project": {"source": 1, "metric": {"$objectToArray": "$metrics"}}},
                {"$unwind": "$metric"},
                {"$group": {"_id": {"source": "$source", "name": "$metric.k"}, "mean": {"$avg": "$metric.v"}}},
                {"$sort": {"_id": 1}},
            ]
        )
        means: dict[str, dict[str, float]] = {}
        async for row in cursor:
            means.setdefault(row["_id"]["source"], {})[row["_id"]["name"]] = row["mean"]
        return means

    # ------------------------------------------------------------------ show

    async def tasks_called(self, name: str) -> list[Document]:
        """Tasks whose id, or id in their data set, is `name`."""
        return await self._tasks.find({"$or": [{"_id": name}, {"tid": name}]}).sort([("_id", 1)]).to_list()

    async def records_of(self, task_id: str) -> list[Document]:
        """Every attempt at every slot of a task."""
        return await self._records.find({"task": task_id}).sort([("traj_id", 1), ("attempt", 1)]).to_list()

    # ------------------------------------------------------------------ trace

    async def chain(self, where: Mapping[str, Any]) -> list[Document]:
        """`chain_pipeline` on `record_data`: one row per trained dispatch."""
        cursor = await self._data.aggregate(chain_pipeline(where))
        return await cursor.to_list()


def chain_pipeline(where: Mapping[str, Any]) -> list[Document]:
    """From training data to its dispatches; can be pasted into Compass (collection `record_data`)."""
    return [
        {"$match": dict(where)},
        {"$project": {"record": 1, "task": 1, "policy": 1, "reward": 1, "trained_steps": 1, "used": "$dispatches.id"}},
        {
            "$lookup": {
                "from": "dispatched_sampling_tasks",
                "localField": "used",
                "foreignField": "_id",
                "as": "dispatch",
            }
        },
        {"$unwind": "$dispatch"},
        {
            "$project": {
                "_id": "$dispatch._id",
                "record": 1,
                "task": 1,
                "policy": 1,
                "reward": 1,
                "trained_steps": 1,
                "turn": "$dispatch.turn",
                "thread": {"$ifNull": ["$dispatch.thread", None]},
                "weight_versions": "$dispatch.weight_versions",
                "advantage": "$dispatch.advantage",
                "service": "$dispatch.service",
                "tool_calls": {"$ifNull": ["$dispatch.tool_calls", []]},
            }
        },
        {"$sort": {"record": 1, "turn": 1, "_id": 1}},
    ]


def _last(where: Document, order: Sequence[str], newest: int | None) -> list[Document]:
    """Stages. `order`: fields that follow those of `where` in an index."""
    if newest is None:
        return [{"$match": where}]
    return [{"$match": where}, {"$sort": dict.fromkeys([*where, *order], -1)}, {"$limit": newest}]


async def _grouped(
    collection: AsyncCollection[Document], index: str, stages: list[Document], field: str, **more: Document
) -> list[Document]:
    """Rows with `_id`, a value of the field, `n`, its number, and `more`."""
    group = {"$group": {"_id": f"${field}", "n": {"$sum": 1}, **more}}
    cursor = await with_index(index, lambda by: collection.aggregate([*stages, group], **by))
    return await cursor.to_list()


def _texts(value: Any) -> tuple[str, ...]:
    """The texts of a stored list, which may be malformed."""
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
