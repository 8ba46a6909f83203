"""The audit: checks a run's database against the invariants. Read-only; used by tests and `tandem audit RUN`.

    report = await audit(store)
    assert report.ok, report

It reads documents as stored and derives every token sequence again from the dispatches, so that it shares no code with
the sampler that wrote the trees. Groups are examined in batches (`groups.py`); tools, rules and steps over the whole run.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from shared.store import Store
from shared.store.settings import trainer_kind
from tandem.audit.processes import Processes, examined
from tandem.audit.report import AuditReport, Check
from tandem.audit.rules import audit_rules
from tandem.audit.scope import AuditScope
from tandem.audit.steps import audit_trained_steps
from tandem.audit.tools import audit_tools

GROUPS_AT_ONCE = 100
__all__ = ["AuditReport", "Check", "audit"]


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """`running`: open and leased slots are allowed, and invariants that hold only between writes are not examined.
    `max_trained_count`: None uses the trainer's stored configuration, or 1. `newest_step`: None uses the newest announced policy
    version of the surviving history. `processes`: None examines a large run in this process alone. `on_groups` is called with
    every number of groups that was examined.
    """

    running: bool = False
    max_trained_count: int | None = None
    newest_step: int | None = None
    processes: Processes | None = None
    on_groups: Callable[[int], None] = lambda number: None


async def audit(store: Store, options: AuditOptions | None = None, **given: Any) -> AuditReport:
    """Check every invariant on the whole run. `given`: fields of `AuditOptions`, in place of `options`."""
    options = options or AuditOptions(**given)
    report = with_notes(AuditReport(store.run), options.running)
    scope = await scope_of(store, options)
    await audit_batches(store, report, in_batches(store.stored.groups(), GROUPS_AT_ONCE), scope, options)
    await audit_tools(store, report)
    await audit_rules(store, report)
    if not options.running:
        await audit_trained_steps(store, report, scope)
    return finished(report)


async def audit_batches(
    store: Store,
    report: AuditReport,
    batches: AsyncIterator[Sequence[Any]],
    scope: AuditScope,
    options: AuditOptions,
) -> list[Any]:
    """Examine groups in the order of their batches; returns the ids of the batches with violations."""
    wrong: list[Any] = []
    async with aclosing(examined(store, batches, scope, options.processes)) as parts:
        async for ids, part in parts:
            report.merge(part)
            wrong += () if part.ok else ids
            options.on_groups(len(ids))
    return wrong


def with_notes(report: AuditReport, running: bool) -> AuditReport:
    """Which checks are not, or only in part, made while the run is active."""
    for check in (Check.SURVIVING, Check.MARKS, Check.ACCOUNTS) if running else ():
        report.results[check].note = "not examined while running"
    for check in (Check.DROPPED, Check.GROUPS) if running else ():
        report.results[check].note = "while running: of settled groups"
    return report


def finished(report: AuditReport) -> AuditReport:
    """With the totals of data that was set aside."""
    for status, reasons in report.set_aside.items():
        report.counts[f"records {status}"] = sum(reasons.values())
    return report


async def in_batches(ids: AsyncIterator[Any], size: int) -> AsyncIterator[list[Any]]:
    batch: list[Any] = []
    async for one in ids:
        batch.append(one)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def scope_of(store: Store, options: AuditOptions) -> AuditScope:
    policies = await store.questions.policies()
    settings = await store.settings.last(await store.runs.get())
    limits, newest = {}, {}
    for policy in policies:
        own = int(settings.get(trainer_kind(policy), {}).get("max_trained_count", 1))
        limits[policy] = own if options.max_trained_count is None else options.max_trained_count
        version = await store.versions.newest(policy)
        announced = version.step if version else 0
        newest[policy] = announced if options.newest_step is None else options.newest_step
    return AuditScope(options.running, limits, newest)
