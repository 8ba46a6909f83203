"""The lines and tables of `tandem status`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared.documents.states import DataStatus, RecordStatus, SlotStatus, TaskStatus
from shared.store.condition import Condition
from shared.store.runs import has_left
from tandem.commands.connect import print_records, table
from tandem.commands.engine_rows import STEPS, shown
from tandem.commands.run_status import MOST_COUNTED, PolicyStatus, RunStatus
from tandem.commands.service_rows import LONG_GONE_S

CUT_SHORT = (Condition.CRASHED, Condition.ABANDONED)
MAX_EXAMPLE_CHARS = 200


def print_once(out: Console, parts: list[Any]) -> None:
    """Print the parts so that every id can be copied, however narrow the terminal is."""
    for part in parts:
        if isinstance(part, Table):
            names = [str(column.header) for column in part.columns]
            print_records(out, part, next((name for name in names if name in ("url", "process")), names[0]))
        else:
            out.print(part, soft_wrap=True)


def lines_and_tables(now: RunStatus, every_worker: bool) -> list[Any]:
    """The lines and tables of a run. `every_worker`: also of those that ended or died long ago."""
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
