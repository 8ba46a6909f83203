"""What a run's dashboard shows: metrics by step, held-out rounds, the queue, faults and alarms.

Of many steps, every n-th is read, so that a page reads at most `MOST_POINTS` of them; numbers
of states are counted up to `MOST_COUNTED`.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.documents.run import Run, Worker
from shared.documents.states import DataStatus, RecordStatus, ServiceStatus, TaskStatus
from shared.names import EVAL_SPLIT, TRAIN_SPLIT
from shared.store import Store
from shared.store.indexes import with_index
from shared.store.views.query import note_read

Document = dict[str, Any]
MOST_POINTS = 300  # of a curve, which is about 400 pixels wide
MOST_COUNTED = 10_000
MOST_FAULTS = 200  # of each split: the newest
MOST_ROUNDS_TASKS = 20_000  # held-out tasks that are read, of the newest rounds
MOST_WORKERS = 2_000
ALARM = "alarm/"
MOST_NAMES = 50  # of metrics of one kind
HAS_METRICS: Document = {"metrics": {"$nin": [None, {}]}}  # those of the last step are noted after it


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step that is part of the weights. `metrics`: those asked for that it has."""

    step: int
    groups: int
    records: int
    created_at: datetime | None
    metrics: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """One source of one round; "" is all of them. `std`: of the tasks' means."""

    version: int
    source: str
    tasks: int
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Attempts that failed in one way, of the newest `MOST_FAULTS`."""

    termination: str
    attempts: int
    example: str
    record: str


@dataclass(frozen=True, slots=True)
class Count:
    name: str
    number: int
    is_more: bool  # than the number, which is the bound


async def last_step(store: Store, policy: str) -> int:
    newest = await store.database["trained_steps"].find_one({"policy": policy}, {"step": 1}, sort=[("step", -1)])
    return int(newest["step"]) if newest else 0


async def step_rows(store: Store, run: Run, policy: str, names: Sequence[str], *, alarms: bool = True) -> list[StepRow]:
    """At most `MOST_POINTS` and the last step, evenly spread."""
    last = await last_step(store, policy)
    every = max(1, -(-last // MOST_POINTS))
    where: Document = {"policy": policy, "step": {"$mod": [every, last % every]}}
    fields: Document = {"step": 1, "trainer_generation": 1, "groups": 1, "created_at": 1}
    shown = [*names, *(await _names_at_last_step(store, policy, ALARM) if alarms else ())]
    if any("." in name for name in shown):  # a source with a dot: a projection would look for it in a deeper document
        fields["metrics"] = 1
    else:
        fields |= {f"metrics.{name}": 1 for name in shown}
    cursor = store.database["trained_steps"].find(where, fields).sort([("step", 1)]).limit(4 * MOST_POINTS)
    rows: dict[int, StepRow] = {}
    starts = run.starts.get(policy, [])
    async for document in cursor:
        note_read("trained_steps", [document])
        if not _survives(document, starts):
            continue
        sizes = [size for _, size in document.get("groups", [])]
        rows[document["step"]] = StepRow(
            document["step"], len(sizes), sum(sizes), document.get("created_at"), _of(document, shown)
        )
    return list(rows.values())


def _of(document: Document, names: Sequence[str]) -> dict[str, float | None]:
    metrics = document.get("metrics") or {}
    return {name: metrics[name] for name in names if name in metrics}


def _survives(document: Document, starts: Sequence[int]) -> bool:
    """As `TrainedStep.survives`."""
    return all(began_from >= document["step"] for began_from in starts[document["trainer_generation"] :])


async def curves_depend_on(store: Store, policy: str) -> tuple[object, ...]:
    """Differs after a step, its metrics or a held-out task that is over. Reads three documents, and keys of held-out tasks."""
    steps, tasks = store.database["trained_steps"], store.database["tasks"]
    of, settled = {"policy": policy}, {"policy": policy, "split": EVAL_SPLIT, "status": TaskStatus.SETTLED.value}
    by_time = [("created_at", -1), ("_id", -1)]  # after a resume, steps are taken again: the newest is not the last
    newest = await steps.find_one(of, {"_id": 1}, sort=by_time)
    logged = await steps.find_one({**of, **HAS_METRICS}, {"_id": 1}, sort=by_time)
    last = await with_index("by status", lambda by: tasks.find_one(settled, {"_id": 1}, sort=[("seq", -1)], **by))
    number = await with_index("by status", lambda by: tasks.count_documents(settled, limit=MOST_ROUNDS_TASKS, **by))
    return tuple(tuple(one.values()) if one else None for one in (newest, logged, last)), number


async def reward_sources(store: Store, policy: str, prefix: str) -> list[str]:
    """Metrics of the last step that begin with `prefix`, with it."""
    return await _names_at_last_step(store, policy, prefix)


async def _names_at_last_step(store: Store, policy: str, prefix: str) -> list[str]:
    where = {"policy": policy, **HAS_METRICS}
    newest = await store.database["trained_steps"].find_one(where, {"metrics": 1}, sort=[("step", -1)])
    return [name for name in (newest or {}).get("metrics") or {} if name.startswith(prefix)][:MOST_NAMES]


async def held_out(store: Store, policy: str) -> list[HeldOutScore]:
    """Of every round with settled tasks, the newest rounds first if there are very many."""
    pipeline: list[Document] = [
        {"$match": {"policy": policy, "split": EVAL_SPLIT, "status": TaskStatus.SETTLED.value}},
        {"$sort": {"seq": -1}},
        {"$limit": MOST_ROUNDS_TASKS},
        {"$match": {"at_version": {"$ne": None}}},
        {"$project": {"at_version": 1, "source": 1, "mean": {"$avg": "$scores"}}},
        {
            "$group": {
                "_id": {"version": "$at_version", "source": "$source"},
                "n": {"$sum": 1},
                "sum": {"$sum": "$mean"},
                "squares": {"$sum": {"$multiply": ["$mean", "$mean"]}},
            }
        },
    ]
    sums: dict[tuple[int, str], list[float]] = {}
    async for row in await store.database["tasks"].aggregate(pipeline):
        for source in ("", row["_id"]["source"]):
            totals = sums.setdefault((row["_id"]["version"], source), [0, 0.0, 0.0])
            for place, name in enumerate(("n", "sum", "squares")):
                totals[place] += row[name]
    return [_held_out(version, source, *figures) for (version, source), figures in sorted(sums.items())]


def _held_out(version: int, source: str, n: float, total: float, squares: float) -> HeldOutScore:
    mean = total / n
    variance = max(0.0, squares / n - mean * mean) * n / max(1, n - 1)
    return HeldOutScore(version, source, int(n), mean, variance**0.5)


async def steps_of_versions(
    store: Store, policy: str, versions: Sequence[int]
) -> dict[int, tuple[int, datetime | None]]:
    """{version: (its step, when it was announced)}"""
    cursor = store.database["policy_versions"].find(
        {"policy": policy, "version": {"$in": list(versions)}}, {"version": 1, "step": 1, "created_at": 1}
    )
    return {document["version"]: (document["step"], document.get("created_at")) async for document in cursor}


async def queue(store: Store, policy: str) -> list[Count]:
    """Groups that are being played, wait for settlement, and records that wait for the trainer or were set aside."""
    tasks: Document = {"policy": policy, "split": TRAIN_SPLIT}
    data: Document = {"policy": policy}
    counted = (
        ("groups not begun", "tasks", {**tasks, "status": TaskStatus.CREATED.value}),
        ("groups being played", "tasks", {**tasks, "status": TaskStatus.RUNNING.value}),
        ("groups to be settled", "tasks", {**tasks, "status": TaskStatus.COMPLETED.value}),
        ("records ready to train", "record_data", {**data, "status": DataStatus.READY.value}),
        ("records too stale", "record_data", {**data, "status": DataStatus.STALE.value}),
        ("records dropped", "record_data", {**data, "status": DataStatus.DROPPED.value}),
    )
    return list(await asyncio.gather(*(_count(store, *one) for one in counted)))


async def _count(store: Store, name: str, collection: str, where: Document) -> Count:
    count = await store.database[collection].count_documents(where, limit=MOST_COUNTED + 1)
    return Count(name, min(count, MOST_COUNTED), count > MOST_COUNTED)


async def faults(store: Store) -> list[Fault]:
    """Of the newest failed attempts, the most frequent first."""
    fields = {"termination": 1, "error": 1}
    documents: list[Document] = []
    for split in (TRAIN_SPLIT, EVAL_SPLIT):
        where = {"split": split, "status": RecordStatus.FAILED.value}
        newest = store.database["records"].find(where, fields).sort([("finished_at", -1)]).limit(MOST_FAULTS)
        documents += await newest.to_list()
    examples = {str(document.get("termination")): document for document in reversed(documents)}
    counts = Counter(str(document.get("termination")) for document in documents)
    return [
        Fault(why, n, str(examples[why].get("error") or ""), examples[why]["_id"]) for why, n in counts.most_common()
    ]


async def malformed(store: Store) -> list[str]:
    cursor = store.database["malformed_documents"].find().limit(20)
    return [str(document.get("problem", document["_id"])) async for document in cursor]


async def workers(store: Store) -> tuple[list[Worker], set[str]]:
    """Every process that was heard of, and the ids of those that are alive."""
    workers, live = await store.workers.all_and_live()
    return workers[-MOST_WORKERS:], live


async def engines(store: Store) -> list[Document]:
    """Every engine: url, policy, version, status, load, heartbeat, error. One that is not heard of is DOWN."""
    live = await store.services.is_live()
    return [
        {
            "url": one.url,
            "policy": one.policy,
            "version": one.version,
            "status": one.status.value if one.id in live else ServiceStatus.DOWN.value,
            "running": one.running,
            "waiting": one.waiting,
            "token_usage": one.token_usage,
            "heartbeat": one.heartbeat,
            "error": one.error,
        }
        for one in await store.services.all()
    ]
