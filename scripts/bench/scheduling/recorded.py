"""Reads a recorded run: its workload, how fast its engines and its trainer were, and how long its steps took.

An episode's times are the server's: its record's start and end, and its requests' starts. What lies between a request and the
next one, without the tools' time, is the reply's. It is fitted as

    overhead_s + prefill_s · prefilled + (output + request_tokens) · (step_s + n · request_step_s)

where n is the mean number of requests at the same engine meanwhile, and `prefilled` the fresh tokens of those that came to it
meanwhile, its own included: their prefill stops all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from scripts.bench.scheduling.engine import EngineModel
from scripts.bench.scheduling.simulator import RunModel
from scripts.bench.scheduling.workload import SimulatedEpisode, SimulatedGroup, SimulatedTurn, Workload
from shared.documents.states import TaskStatus
from shared.errors import DataError
from shared.names import TRAIN_SPLIT
from shared.store import Store

Document = dict[str, Any]
RECORDS_AT_ONCE = 500
FEWEST_REPLIES = 20  # for a fit of five numbers
REQUEST_TOKENS = (0, 2, 8, 32, 128)  # of which the fit takes the best


@dataclass(frozen=True, slots=True)
class TimedReply:
    """One request as it was recorded: at `service`, from `began` (seconds of the epoch) for `seconds`, without its tools."""

    service: str
    began: float
    seconds: float
    fresh: int
    output: int


@dataclass(frozen=True, slots=True)
class Recording:
    """`step_s`: measured, from the first claim to the last step's weights, by step. `fit_error`: how far a reply's fitted time is
    from the recorded one, as a share of that; the median."""

    workload: Workload
    model: RunModel
    step_s: float
    fit_error: float


async def read(store: Store, policy: str) -> Recording:
    """Raises DataError for a run without a step or with too few replies."""
    ended = [task async for task in store.stored.settled_tasks(policy, TRAIN_SPLIT)]
    ended.sort(key=lambda task: int(task["seq"]))
    ids = [slot["record_id"] for task in ended for slot in task["slots"] if slot.get("record_id")]
    records: dict[str, Document] = {}
    requests: dict[str, list[Document]] = {}
    for start in range(0, len(ids), RECORDS_AT_ONCE):
        some = ids[start : start + RECORDS_AT_ONCE]
        records |= await store.stored.records(some)
        requests |= await store.stored.request_times(some)
    played = {rid: record for rid, record in records.items() if record.get("finished_at") and requests[rid]}
    groups = [
        SimulatedGroup(task["tid"], task["source"], tuple(episodes), usable=task["status"] == TaskStatus.SETTLED)
        for task in ended
        if (episodes := [_episode(played[rid], requests[rid]) for rid in _records_of(task) if rid in played])
    ]
    replies = [reply for rid, record in played.items() for reply in _replies(record, requests[rid])]
    engine, fit_error = fitted(replies)
    if not groups:
        raise DataError(
            f"run {store.run}: no group of policy {policy} was settled; expected a run with at least one step"
        )
    model, step_s = await _run_model(store, policy, engine, ended, list(played.values()), requests)
    return Recording(Workload(tuple(groups)), model, step_s, fit_error)


def _records_of(task: Document) -> list[str]:
    return [slot["record_id"] for slot in task["slots"] if slot.get("record_id")]


def _ends(record: Document, requests: Sequence[Document]) -> list[float]:
    """When each of its requests was over, tools included: with the next one, or with the episode."""
    return [*(_s(one["created_at"]) for one in requests[1:]), _s(record["finished_at"])]


def _tools_s(request: Document) -> float:
    """Calls of one turn run at once."""
    return max((float(call["duration_s"]) for call in request.get("tool_calls", ())), default=0.0)


def _episode(record: Document, requests: Sequence[Document]) -> SimulatedEpisode:
    turns = [SimulatedTurn(*_lengths(request), tool_s=_tools_s(request)) for request in requests]
    return SimulatedEpisode(tuple(turns), start_s=max(0.0, _s(requests[0]["created_at"]) - _s(record["created_at"])))


def _lengths(request: Document) -> tuple[int, int, int]:
    """Tokens of the prompt, those that were not cached, and of the reply. A request without a reply has none."""
    usage = request.get("usage", {})
    prompt = int(usage.get("prompt", 0))
    return prompt, prompt - int(usage.get("cached", 0)), int(usage.get("completion", 0))


def _replies(record: Document, requests: Sequence[Document]) -> list[TimedReply]:
    return [
        TimedReply(request["service"], began, max(0.0, end - began - _tools_s(request)), *_lengths(request)[1:])
        for request, end in zip(requests, _ends(record, requests), strict=True)
        if request.get("service") and (began := _s(request["created_at"])) < end
    ]


# ---------------------------------------------------------------------- the engines' speed


def fitted(replies: Sequence[TimedReply]) -> tuple[EngineModel, float]:
    """By least squares without negative numbers; and the error of `Recording.fit_error`. Raises DataError."""
    if len(replies) < FEWEST_REPLIES:
        raise DataError(
            f"{len(replies)} replies are recorded; expected {FEWEST_REPLIES} or more to fit an engine's speed"
        )
    seconds = np.array([reply.seconds for reply in replies])
    output = np.array([reply.output for reply in replies], dtype=float)
    at_once, prefilled = np.ones(len(replies)), np.zeros(len(replies))
    for service in {reply.service for reply in replies}:
        those = [i for i, reply in enumerate(replies) if reply.service == service]
        at_once[those], prefilled[those] = _meanwhile([replies[i] for i in those])
    fits = []
    for request_tokens in REQUEST_TOKENS:
        work = output + request_tokens
        columns = np.stack([np.ones_like(work), prefilled, work, work * at_once], axis=1)
        solved = _not_negative(columns, seconds)
        fits.append((float(((columns @ solved - seconds) ** 2).sum()), request_tokens, columns @ solved, solved))
    _, request_tokens, by_fit, speeds = min(fits, key=lambda fit: fit[0])
    overhead_s, prefill_s, step_s, request_step_s = map(float, speeds)
    if step_s + request_step_s == 0:
        raise DataError(
            "the recorded replies take no longer with more tokens or requests; expected a run that used its engine"
        )
    error = float(np.median(np.abs(by_fit - seconds) / np.maximum(seconds, 1e-3)))
    count = len({reply.service for reply in replies})
    return EngineModel(step_s, request_step_s, prefill_s, overhead_s, request_tokens, count=count), error


def _meanwhile(replies: Sequence[TimedReply]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For each reply of one engine the mean number of requests meanwhile, itself included, and the fresh tokens of those that
    came."""
    starts = np.array([reply.began for reply in replies])
    ends = starts + np.array([max(reply.seconds, 1e-3) for reply in replies])
    edges = np.concatenate([starts, ends])
    order = np.argsort(edges)
    running = np.cumsum(np.concatenate([np.ones(len(replies)), -np.ones(len(replies))])[order])[:-1]
    integral = np.concatenate([[0.0], np.cumsum(running * np.diff(edges[order]))])
    over = np.interp(ends, edges[order], integral) - np.interp(starts, edges[order], integral)
    arrival = np.argsort(starts)
    fresh = np.concatenate([[0.0], np.cumsum(np.array([reply.fresh for reply in replies])[arrival])])
    first, last = np.searchsorted(starts[arrival], starts), np.searchsorted(starts[arrival], ends)
    return over / (ends - starts), fresh[last] - fresh[first]


def _not_negative(columns: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Least squares; the most negative coefficient becomes 0 until none is left."""
    used = list(range(columns.shape[1]))
    while True:
        solved = np.linalg.lstsq(columns[:, used], values, rcond=None)[0]
        if not used or solved.min() >= 0:
            return np.array([solved[used.index(i)] if i in used else 0.0 for i in range(columns.shape[1])])
        used.pop(int(solved.argmin()))


# ---------------------------------------------------------------------- the rest of the run


# 6 parameters
async def _run_model(
    store: Store,
    policy: str,
    engine: EngineModel,
    tasks: Sequence[Document],
    records: Sequence[Document],
    requests: dict[str, list[Document]],
) -> tuple[RunModel, float]:
    """And the measured seconds a step."""
    run = await store.runs.get()
    versions = [
        one for one in await store.versions.all(policy) if one.withdrawn_to is None and one.created_at is not None
    ]
    if run is None or policy not in run.admission or len(versions) < 2:
        raise DataError(f"run {store.run}: policy {policy} has taken no step; expected a run with one or more")
    steps = versions[-1].step
    metrics = await store.steps.newest_metrics(policy, run.starts.get(policy, ()), steps)
    services = [service for service in await store.services.all() if service.policy == policy and service.capacity]
    served = _first_served([one for those in requests.values() for one in those])
    model = RunModel(
        engine=replace(engine, capacity=max((service.capacity for service in services), default=engine.capacity)),
        groups_per_step=run.admission[policy].groups_per_step,
        steps=steps,
        places=_most_at_once(records),
        max_staleness=run.admission[policy].max_staleness,
        train_s=_median([total - wait for one in metrics for total, wait in _times(one)]),
        settle_s=_median(_times_to_settle(tasks)),
        publish_s=_median(
            [served[one.version] - _s(one.created_at) for one in versions if one.step and one.version in served]
        ),
    )
    first, last = min(_s(one["created_at"]) for one in records), _s(versions[-1].created_at)
    return model, (last - first) / steps


def _times(metrics: Mapping[str, float | None]) -> list[tuple[float, float]]:
    """(seconds of a step, those of them that it waited for data), if both are stored."""
    total, wait = metrics.get("time/total_s"), metrics.get("time/wait_s")
    return [] if total is None or wait is None else [(total, wait)]


def _times_to_settle(tasks: Sequence[Document]) -> list[float]:
    return [_s(one["settled_at"]) - _s(one["completed_at"]) for one in tasks if one.get("completed_at")]


def _first_served(requests: Sequence[Document]) -> dict[int, float]:
    """By version: when the first request was sent whose reply begins with its tokens."""
    first: dict[int, float] = {}
    for request in requests:
        if request.get("weight_versions"):
            version, began = int(request["weight_versions"][0][0]), _s(request["created_at"])
            first[version] = min(began, first.get(version, began))
    return first


def _most_at_once(records: Sequence[Document]) -> int:
    edges = [(_s(one["created_at"]), 1) for one in records] + [(_s(one["finished_at"]), -1) for one in records]
    running = np.cumsum([change for _, change in sorted(edges)])
    return int(running.max())


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else 0.0


def _s(time: datetime | None) -> float:
    assert time is not None, "what has ended has its times"
    return time.replace(tzinfo=UTC).timestamp()
