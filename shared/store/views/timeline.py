"""Who did what in a window of time: episodes by sampler, turns by engine, steps, and announcements of weights.

A window that has more than `MOST_EPISODES` shows the newest of them. Reads that many records (index `recent`), their turns (index
`record`), and the newest `MOST_STEPS` steps and versions of the window (`taken`, `announced`).
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.documents.states import RecordStatus
from shared.names import SPLITS
from shared.store import Store
from shared.store.views.query import note_read

Document = dict[str, Any]
MOST_EPISODES = 400
MOST_TURNS = 3_000
MOST_STEPS = 200
ENDED = [status.value for status in RecordStatus if status is not RecordStatus.RUNNING]


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """One thing that took time. `version`: of the weights, the newest; None: none. `link`: a record's id, or a step's."""

    begin: datetime
    end: datetime
    kind: str  # episode, turn, step, wait
    label: str
    version: int | None
    link: str | None
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """Weights that were published in the window."""

    at: datetime
    policy: str
    version: int


@dataclass(frozen=True, slots=True)
class Window:
    begin: datetime
    end: datetime
    lanes: dict[str, list[LaneSpan]]  # by process or engine
    announced: list[PublishedWeights]
    is_cut: bool  # there were more episodes


async def newest_end(store: Store) -> datetime | None:
    """When the last episode ended."""
    newest = [document async for document in _newest(store, None, 1)]
    return max((document["finished_at"] for document in newest), default=None)


async def window_of(store: Store, end: datetime, seconds: float) -> Window:
    begin = end - timedelta(seconds=seconds)
    records = [document async for document in _newest(store, (begin, end), MOST_EPISODES)]
    note_read("records", records)
    records = sorted(records, key=lambda document: document["finished_at"], reverse=True)[:MOST_EPISODES]
    lanes: dict[str, list[LaneSpan]] = {}
    for document in records:
        lanes.setdefault(str(document.get("worker")), []).append(_episode(document))
    for lane, span in [
        *await _turns(store, [document["_id"] for document in records]),
        *await _steps(store, begin, end),
    ]:
        lanes.setdefault(lane, []).append(span)
    within = {"created_at": {"$gte": begin, "$lte": end}}
    versions = store.database["policy_versions"].find(within, {"policy": 1, "version": 1, "created_at": 1})
    newest = versions.sort([("created_at", -1)]).limit(MOST_STEPS)
    announced = [PublishedWeights(one["created_at"], one["policy"], one["version"]) async for one in newest]
    return Window(begin, end, lanes, announced, len(records) == MOST_EPISODES)


async def _newest(store: Store, between: tuple[datetime, datetime] | None, limit: int) -> AsyncIterator[Document]:
    """Ended records of each split and status, the newest first: one walk along the index for each."""
    fields = {
        "worker": 1,
        "created_at": 1,
        "finished_at": 1,
        "policy_versions": 1,
        "source": 1,
        "score": 1,
        "status": 1,
    }
    when: Document = {"$ne": None} if between is None else {"$gte": between[0], "$lte": between[1]}
    for split in SPLITS:  # forks too: they are what a process did
        for status in ENDED:
            where = {"split": split, "status": status, "finished_at": when}
            cursor = store.database["records"].find(where, fields).sort([("finished_at", -1)]).limit(limit)
            async for document in cursor:
                yield document


def _episode(document: Document) -> LaneSpan:
    score = document.get("score")
    label = f"{document['source']}, " + (f"score {score:g}" if score is not None else document["status"])
    versions = document.get("policy_versions") or [None]
    failed = document["status"] == RecordStatus.FAILED.value
    return LaneSpan(
        document.get("created_at") or document["finished_at"],
        document["finished_at"],
        "episode",
        label,
        versions[-1],
        document["_id"],
        failed,
    )


async def _turns(store: Store, records: list[str]) -> list[tuple[str, LaneSpan]]:
    """Requests to engines."""
    fields = {"service": 1, "created_at": 1, "finished_at": 1, "weight_versions": 1, "record": 1, "turn": 1, "error": 1}
    cursor = store.database["dispatched_sampling_tasks"].find({"record": {"$in": records}}, fields).limit(MOST_TURNS)
    spans = []
    async for one in cursor:
        note_read("dispatched_sampling_tasks", [one])
        if one.get("service") is None or one.get("created_at") is None or one.get("finished_at") is None:
            continue
        versions = [version for version, _ in one.get("weight_versions", [])]
        label = f"turn {one['turn']}"
        label += f", versions {versions[0]} to {versions[-1]}" if len(set(versions)) > 1 else ""
        version = versions[-1] if versions else None
        span = LaneSpan(
            one["created_at"], one["finished_at"], "turn", label, version, one["record"], bool(one.get("error"))
        )
        spans.append((f"engine {one['service']}", span))
    return spans


async def _steps(store: Store, begin: datetime, end: datetime) -> list[tuple[str, LaneSpan]]:
    """A step ends when it is noted; its metrics say how long it took, and how long of that it waited for groups."""
    spans: list[tuple[str, LaneSpan]] = []
    names = ("time/total_s", "time/wait_s")
    fields: Document = {"policy": 1, "step": 1, "created_at": 1, **{f"metrics.{name}": 1 for name in names}}
    within = {"created_at": {"$gte": begin, "$lte": end}}
    newest = store.database["trained_steps"].find(within, fields).sort([("created_at", -1)]).limit(MOST_STEPS)
    async for one in newest:
        note_read("trained_steps", [one])
        lane, metrics = f"trainer {one['policy']}", one.get("metrics") or {}
        seconds = [float(metrics.get(name) or 0.0) for name in names]
        spans += [(lane, span) for span in _step(one, one["created_at"], *seconds)]
    return spans


def _step(one: Document, at: datetime, total_s: float, wait_s: float) -> Iterator[LaneSpan]:
    began = at - timedelta(seconds=total_s)
    ready = began + timedelta(seconds=min(wait_s, total_s))
    link = f"{one['policy']}/{one['step']}"
    if wait_s > 0:
        yield LaneSpan(began, ready, "wait", f"step {one['step']} waits {wait_s:.1f} s for groups", None, link)
    yield LaneSpan(
        ready, at, "step", f"step {one['step']} computes {max(0.0, total_s - wait_s):.1f} s", one["step"], link
    )
