"""`tandem status`: the current state of a run."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from shared.documents.run import Run
from shared.documents.states import DataStatus, RecordStatus, SlotStatus, TaskStatus
from shared.errors import MalformedDocument
from shared.store import Store
from shared.store.condition import Condition, condition_of
from shared.store.runs import has_left
from shared.store.views.terms import RunTerms, terms_of
from tandem.commands.connect import AsJson, Connection, RunName, ago, console, print_records, table, with_store
from tandem.commands.engine_rows import STEPS, mismatch_of, shown
from tandem.commands.service_rows import LONG_GONE_S, environments_of, services_of, workers_of

T = TypeVar("T")
RATE_WINDOW_S = 60.0
CUT_SHORT = (Condition.CRASHED, Condition.ABANDONED)
MAX_EXAMPLE_CHARS = 200
NEWEST = 1_000  # of each kind are counted by their reasons
MOST_COUNTED = 100_000  # documents of one state: as many keys of an index take some 25 ms to count

EXAMPLES = """Examples:

`tandem status demo`  once

`tandem status demo --watch`  until Ctrl-C, every two seconds

`tandem status demo --all`  includes workers that have stopped or died

`tandem status demo --json | jq .tasks`  for programs
"""


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


def status(
    run: RunName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[bool, typer.Option("--all", help="List all workers, including stopped ones.")] = False,
    interval_s: Annotated[float, typer.Option("--interval_s", min=0.1, help="Refresh period of --watch.")] = 2.0,
    as_json: AsJson = False,
    db_connection_string: Connection = None,
) -> None:
    """Show tasks, slots, records, training data, engines, workers, weights and rates of a run.

    Times are by the database's clock. Rates are over the last minute. *Staleness* is how many optimizer steps the weights
    that sampled a record are behind the newest.
    """

    async def work(store: Store) -> None:
        if as_json:
            while True:
                typer.echo(json.dumps(asdict(await read_status(store)), ensure_ascii=False, default=str))
                if not watch:
                    return
                await asyncio.sleep(interval_s)
        if not watch:
            _print(console(), _render(await read_status(store), every))
            return
        with Live(Group(*_render(await read_status(store), every)), console=console(), auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval_s)
                live.update(Group(*_render(await read_status(store), every)), refresh=True)

    with_store(db_connection_string, run, work, read_only=True)


# ---------------------------------------------------------------------- queries


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


# ---------------------------------------------------------------------- the tables


def _print(out: Console, parts: list[Any]) -> None:
    """Once, and so that every id can be copied, however narrow the terminal is."""
    for part in parts:
        if isinstance(part, Table):
            names = [str(column.header) for column in part.columns]
            print_records(out, part, next((name for name in names if name in ("url", "process")), names[0]))
        else:
            out.print(part, soft_wrap=True)


def _render(now: RunStatus, every_worker: bool) -> list[Any]:
    """Lines and tables."""
    rates = ", ".join(f"{name} {value:.3g}" for name, value in now.rates.items())
    parts: list[Any] = [f"run [bold]{escape(now.run)}[/bold] is {now.state}; {escape(rates)}"]
    parts += _ended(now)
    parts += [escape(f"  {text}") for one in now.terms for text in (*one.costs, one.rules_text) if text]
    parts.append(_counts("tasks", now.tasks, [s.value for s in TaskStatus]))
    parts += [f"  {n} × {escape(outcome)}" for outcome, n in sorted(now.abandoned.items())]
    parts += [f"  [red]set aside[/red] {escape(text)}" for text in now.tasks_set_aside]
    parts.append(
        _counts(
            "slots of groups in progress (failures: of all groups)",
            now.slots,
            [*(s.value for s in SlotStatus), "failures"],
        )
    )
    first = now.next_feedback
    if first is not None:
        parts.append(escape(f"  the first deadline for feedback is in {first['left']}: {first['record']}"))
    parts.append(_counts("records", {"records": now.records}, [s.value for s in RecordStatus]))
    for failed in now.failed_attempts:
        example = str(failed["example"])[:MAX_EXAMPLE_CHARS]
        parts.append(f"  failed: {failed['attempts']} × {failed['termination']}, such as: {escape(example)}")
    parts.append(_counts("training data", {"record_data": now.record_data}, [s.value for s in DataStatus]))
    for status_, reasons in now.set_aside.items():
        parts += [f"  {status_}: {n} × {escape(reason)}" for reason, n in sorted(reasons.items())]
    parts += [f"  [red]malformed[/red] {escape(problem)}" for problem in now.malformed]
    if any(now.metrics.values()):
        parts.append(_metrics(now.metrics))
    parts.append(_policies(now.policies))
    parts.append(_rows("engines", now.services, ("url", "policy", "version", "status", "running", "waiting", "heard")))
    if now.mismatch_by_engine:
        parts.append(_mismatch(now.mismatch_by_engine))
    if now.environments:
        names = ("url", "kinds", "running", "starting", "capacity", "version", "heard")
        parts.append(_rows("environments", now.environments, names))
    gone = [] if every_worker else [worker for worker in now.workers if worker["gone"]]
    listed = [worker for worker in now.workers if worker not in gone]
    alive = f"workers: {sum(worker['live'] for worker in now.workers)} alive"
    parts.append(_rows(alive, listed, ("kind", "process", "doing", "heard", "stats")))
    if gone:
        stopped = sum(has_left(worker["doing"]) for worker in gone)
        lost = f"{len(gone) - stopped} not heard of for more than {LONG_GONE_S / 60:.0f} min"
        parts.append(f"  {stopped} more have stopped, {lost}; --all lists them")
    for worker in now.workers:
        if worker["live"]:
            parts += [f"  [yellow]alarm[/yellow] {worker['kind']} {escape(alarm)}" for alarm in worker["alarms"]]
    return parts


def _ended(now: RunStatus) -> list[str]:
    """How the run, or a trainer of it, ended."""
    lines = [f"  [red]{now.state}[/red]: {escape(now.reason)}"] if now.state in CUT_SHORT else []
    lines += [f"  {now.state}: {escape(now.reason)}"] if now.state == Condition.STOPPED else []
    for end in now.ends:
        at = f"{str(end['ended_at'])[:19]} UTC"
        where = f"the trainer of policy {end['policy']} ended {end['ended']} ago ({at}) after step {end['step']}"
        lines.append(escape(f"  {where}: {end['reason']}"))
    return lines


def _counts(title: str, rows: Mapping[str, Mapping[str, int]], names: list[str]) -> Table:
    made = table("", *(f"{name} #" for name in names), title=title)
    for label, counts in sorted(rows.items()):
        made.add_row(escape(label), *(_number(counts.get(name, 0)) for name in names))
    return made


def _number(counted: int) -> str:
    return f"{counted:,}" if counted <= MOST_COUNTED else f"> {MOST_COUNTED:,}"


def _metrics(metrics: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    made = table("split", "source", "mean of the last records", title="sampler-defined metrics")
    for split, sources in metrics.items():
        for source, means in sources.items():
            made.add_row(escape(split), escape(source), _cell(means))
    return made


def _mismatch(rows: list[dict[str, Any]]) -> Table:
    made = table(*shown(rows[0]), title=f"mismatch by engine, last {STEPS} steps")
    for row in rows:
        made.add_row(*map(escape, shown(row).values()), style="red" if row["limit"] is not None else None)
    return made


def _policies(policies: list[PolicyStatus]) -> Table:
    made = table("policy", "version #", "step #", "announced", "ready data by staleness", title="weights")
    for p in policies:
        ready = "  ".join(
            f"{'unknown' if steps < 0 else steps}: {n}" for steps, n in sorted(p.ready_by_staleness.items())
        )
        version = "none" if p.version is None else str(p.version)
        age = p.announced if p.version is None else f"{p.announced} ago"
        made.add_row(escape(p.policy), version, str(p.step), age, ready or "none waits")
    return made


def _rows(title: str, rows: list[dict[str, Any]], names: tuple[str, ...]) -> Table:
    made = table(*names, title=title if rows else f"{title}: none")
    for row in rows:
        last_seen = f"{row['heard']} ago" if row["live"] else f"not heard of for {row['heard']}"
        cells = [last_seen if name == "heard" else _cell(row[name]) for name in names]
        made.add_row(*cells, style="dim" if not row["live"] or row.get("status") == "DOWN" else None)
    return made


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return escape(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in value.items()))
    return escape(str(value))
