"""A run's dashboard: what it is doing, what is wrong, and its curves."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from shared.documents.run import Worker
from shared.store.condition import OPEN_CONDITIONS
from shared.store.unforeseen import TaskSetAside
from shared.store.views import dashboard as views
from shared.store.views.runs import RunRow, run_row
from shared.store.views.terms import RunTerms, terms_of_run
from tandem.viewer.curves import NAMES, SOURCE, Chart, charts_of
from tandem.viewer.page_request import BadQuestion, PageRequest

POLL_LIVE_S = 5  # how often a page of a run that goes on asks again
MOST_LISTED = 60  # processes


@dataclass(frozen=True, slots=True)
class ProcessRow:
    id: str
    kind: str
    doing: str
    is_alive: bool
    heartbeat: datetime | None
    tokens_per_s: float | None
    alarms: list[str]


@dataclass(frozen=True, slots=True)
class AlarmSteps:
    """Of the shown steps, those at which an alarm was on."""

    name: str
    steps: int
    first: int
    last: int
    is_on: bool  # at the newest step


@dataclass(frozen=True, slots=True)
class CurrentState:
    """What changes between two steps: the dashboard without its curves."""

    row: RunRow
    terms: list[RunTerms]  # of the policy
    policy: str
    policies: list[str]
    poll_s: int  # 0: the run is over
    queue: list[views.Count]
    alarms: list[tuple[str, str]]  # (process, text with advice) of the living ones; of an ended run, the last ones
    faults: list[views.Fault]
    malformed: list[str]
    set_aside: list[TaskSetAside]
    processes: list[ProcessRow]
    processes_more: int
    engines: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Dashboard(CurrentState):
    charts: list[Chart]
    alarm_steps: list[AlarmSteps]


async def dashboard_page(request: PageRequest) -> Dashboard:
    row = await run_row(request.store)
    policy = chosen_policy(request, row.policies)
    (rows, charts), state = await asyncio.gather(curves(request, policy), current_state(request, row, policy))
    current = {field.name: getattr(state, field.name) for field in fields(state)}
    return Dashboard(**current, charts=charts, alarm_steps=alarm_steps(rows))


async def state_page(request: PageRequest) -> CurrentState:
    """What an open dashboard asks for every `POLL_LIVE_S`; its curves only after a step."""
    row = await run_row(request.store)
    return await current_state(request, row, chosen_policy(request, row.policies))


async def current_state(request: PageRequest, row: RunRow, policy: str) -> CurrentState:
    store = request.store
    (workers, alive), queue, faults, malformed, set_aside, engines = await asyncio.gather(
        views.workers(store),
        views.queue(store, policy),
        views.faults(store),
        views.malformed(store),
        store.unforeseen.tasks_set_aside(),
        views.engines(store),
    )
    goes_on = row.state in OPEN_CONDITIONS
    processes = [process_row(worker, worker.id in alive) for worker in reversed(workers)]
    processes.sort(key=lambda one: not one.is_alive)
    spoken = [one for one in processes if one.alarms and (one.is_alive or not goes_on)]
    return CurrentState(
        row=row,
        terms=await terms_of_run(store, policy),
        policy=policy,
        policies=row.policies,
        poll_s=POLL_LIVE_S if goes_on else 0,
        queue=queue,
        alarms=[(f"{one.kind} {one.id}", alarm) for one in spoken for alarm in one.alarms],
        faults=faults,
        malformed=malformed,
        set_aside=set_aside,
        processes=processes[:MOST_LISTED],
        processes_more=max(0, len(processes) - MOST_LISTED),
        engines=engines,
    )


def chosen_policy(request: PageRequest, policies: Sequence[str]) -> str:
    policy = request.text("policy") or (policies[0] if policies else "")
    if policies and policy not in policies:
        raise BadQuestion(f"policy is {policy[:80]!r}; expected {', '.join(policies)}")
    return policy


async def curves(request: PageRequest, policy: str) -> tuple[list[views.StepRow], list[Chart]]:
    sources = await views.reward_sources(request.store, policy, SOURCE)
    rows = await views.step_rows(request.store, request.run, policy, [*NAMES, *sources])
    held_out = await views.held_out(request.store, policy)
    step_of = await views.steps_of_versions(request.store, policy, sorted({one.version for one in held_out}))
    return rows, charts_of(rows, held_out, step_of)


def process_row(worker: Worker, is_alive: bool) -> ProcessRow:
    rates = [worker.stats.get(name) for name in ("tokens_per_s", "perf/tokens_per_s")]
    rate = next((float(value) for value in rates if isinstance(value, int | float)), None)
    return ProcessRow(worker.id, worker.kind, worker.doing, is_alive, worker.heartbeat, rate, worker.alarms)


def alarm_steps(rows: Sequence[views.StepRow]) -> list[AlarmSteps]:
    on: dict[str, list[int]] = {}
    for row in rows:
        for name, value in row.metrics.items():
            if name.startswith(views.ALARM) and value:
                on.setdefault(name.removeprefix(views.ALARM), []).append(row.step)
    newest = rows[-1].step if rows else 0
    return [AlarmSteps(name, len(at), at[0], at[-1], at[-1] == newest) for name, at in sorted(on.items())]
