"""The current state of a run, as `tandem status` and its `--json` show it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shared.documents.run import Run
from shared.documents.states import SlotStatus
from shared.errors import MalformedDocument
from shared.store import Store
from shared.store.condition import condition_of
from shared.store.views.terms import RunTerms, terms_of
from tandem.commands.connect import ago
from tandem.commands.engine_rows import mismatch_of
from tandem.commands.service_rows import environments_of, services_of, workers_of

T = TypeVar("T")
RATE_WINDOW_S = 60.0
NEWEST = 1_000  # of each kind are counted by their reasons
MOST_COUNTED = 100_000  # documents of one state: as many keys of an index take some 25 ms to count


@dataclass(slots=True)
class PolicyStatus:
    """A policy's newest weights, and the staleness of the waiting data."""

    policy: str
    version: int | None
    step: int
    announced: str
    ready_by_staleness: dict[int, int] = field(default_factory=dict)  # {optimizer steps behind: records}


@dataclass(slots=True)
class RunStatus:
    """A snapshot of a run, which `--json` prints unchanged."""

    run: str
    counted_to: int  # a larger number of tasks, records or data of one state stands for more than this
    state: str  # of Condition
    reason: str
    ends: list[dict[str, Any]]  # of finished trainers: policy, step, reason, time
    tasks: dict[str, dict[str, int]]
    abandoned: dict[str, int]  # {reason: groups}
    slots: dict[str, dict[str, int]]
    next_feedback: dict[str, Any] | None  # of the episodes that wait, the first deadline: {record, deadline, left}
    records: dict[str, int]
    record_data: dict[str, int]
    malformed: list[str]  # set-aside or ignored documents, each with its error
    tasks_set_aside: list[str]  # that met too many bugs, each with the last one's error
    failed_attempts: list[dict[str, Any]]  # {termination, attempts, example of an error}
    set_aside: dict[str, dict[str, int]]
    metrics: dict[str, dict[str, dict[str, float]]]  # {split: {source: {name: mean of the last records}}}
    policies: list[PolicyStatus]
    terms: list[RunTerms]  # what a step costs, and the rules of settlement
    services: list[dict[str, Any]]
    mismatch_by_engine: list[dict[str, Any]]  # of the last steps; []: one engine sampled their tokens
    environments: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    rates: dict[str, float]


async def read_status(store: Store) -> RunStatus:
    """Query everything that the tables show: what does not depend on each other, at once."""
    run, now = await asyncio.gather(_run(store), store.questions.server_time())
    known, tasks, records, record_data, malformed, names = await asyncio.gather(
        store.workers.all_and_live(),
        store.tasks.count_by_status(most=MOST_COUNTED),
        store.records.count_by_status(MOST_COUNTED),
        store.data.count_by_status(most=MOST_COUNTED),
        store.malformed.all(),
        store.questions.policies(),
    )
    workers = workers_of(*known, now)
    policies = await asyncio.gather(*(_policy(store, policy) for policy in names))
    condition, slots, metrics, abandoned, failed_attempts, set_aside = await asyncio.gather(
        condition_of(store, known),
        _by_split(tasks, lambda split: _slots(store, split)),
        _by_split(tasks, store.questions.own_metrics),
        store.questions.abandoned_tasks(NEWEST),
        store.questions.failed_attempts(NEWEST),
        store.questions.set_aside(NEWEST),
    )
    return RunStatus(
        run=store.run,
        counted_to=MOST_COUNTED,
        state=condition.condition.value,
        reason=condition.reason,
        ends=await _ends(store, run),
        tasks=tasks,
        abandoned=abandoned,
        slots=slots,
        next_feedback=await _next_feedback(store),
        records=records,
        record_data=record_data,
        malformed=malformed,
        tasks_set_aside=[str(task) for task in await store.unforeseen.tasks_set_aside()],
        failed_attempts=failed_attempts,
        set_aside=set_aside,
        metrics=metrics,
        policies=policies,
        terms=await terms_of(store, run, names),
        services=await services_of(store),
        mismatch_by_engine=await mismatch_of(store, run, names),
        environments=await environments_of(store),
        workers=workers,
        rates=await _rates(store, workers),
    )


async def _by_split(splits: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    splits = list(splits)
    return dict(zip(splits, await asyncio.gather(*map(ask, splits)), strict=True))


async def _slots(store: Store, split: str) -> dict[str, int]:
    """Of groups in progress; failed slots and failures of all groups."""
    counts = await store.questions.slots_in_progress(split)
    attempts, slots = await store.tasks.count_failures(split)
    return {**counts, SlotStatus.FAILED.value: slots, "failures": attempts}


async def _next_feedback(store: Store) -> dict[str, Any] | None:
    waiting = await store.feedback.waiting(1)
    if not waiting:
        return None
    record, deadline, now = waiting[0].record, waiting[0].deadline, await store.questions.server_time()
    return {"record": record, "deadline": deadline, "left": ago(now, max(now, deadline))}


async def _run(store: Store) -> Run | None:
    try:
        return await store.runs.get()
    except MalformedDocument:  # listed in `malformed`
        return None


async def _ends(store: Store, run: Run | None) -> list[dict[str, Any]]:
    now = await store.questions.server_time()
    return [
        {
            "policy": policy,
            "step": end.step,
            "reason": end.reason,
            "ended_at": end.ended_at,
            "ended": ago(end.ended_at, now),
        }
        for policy, end in (run.ends.items() if run else ())
    ]


async def _policy(store: Store, policy: str) -> PolicyStatus:
    now = await store.questions.server_time()
    newest = await store.versions.newest(policy)
    if newest is None:
        return PolicyStatus(policy, None, 0, "never")
    ready = await store.questions.ready_versions(policy)
    versions = await store.versions.some(policy, ready)
    status = PolicyStatus(policy, newest.version, newest.step, ago(newest.created_at, now))
    for version, n in ready.items():
        steps = (
            versions[version].staleness(newest.step) if version in versions else -1
        )  # -1: version was never announced
        status.ready_by_staleness[steps] = status.ready_by_staleness.get(steps, 0) + n
    return status


async def _rates(store: Store, workers: list[dict[str, Any]]) -> dict[str, float]:
    """Rates of the last minute from the records, and the sums of every `*_per_s` statistic over live workers."""
    records, tokens = await store.questions.finished_within(RATE_WINDOW_S)
    rates = {"episodes_per_s": records / RATE_WINDOW_S, "sampled_tokens_per_s": tokens / RATE_WINDOW_S}
    for worker in workers:
        for name, value in worker["stats"].items() if worker["live"] else ():
            if name.endswith("_per_s") and isinstance(value, int | float):
                key = f"{worker['kind']}/{name}"
                rates[key] = rates.get(key, 0.0) + float(value)
    return rates
