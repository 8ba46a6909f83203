"""The audit: checks a run's database against the invariants. Read-only; used by tests and `tandem audit RUN`.

    report = await audit(store)
    assert report.ok, report

It reads documents as stored and derives every token sequence again from the dispatches, so that it shares no code with
the sampler that wrote the trees. Groups are examined in batches (`groups.py`); tools, rules and steps over the whole run.
"""

from collections.abc import AsyncIterator
from typing import Any

from shared.store import Store
from shared.store.settings import trainer_kind
from tandem.audit.groups import audit_groups
from tandem.audit.report import AuditReport, Check
from tandem.audit.rules import audit_rules
from tandem.audit.scope import AuditScope
from tandem.audit.steps import audit_trained_steps
from tandem.audit.tools import audit_tools

GROUPS_AT_ONCE = 100
__all__ = ["AuditReport", "Check", "audit"]


async def audit(
    store: Store, *, running: bool = False, max_trained_count: int | None = None, newest_step: int | None = None
) -> AuditReport:
    """Check every invariant on the whole run.

    `running`: open and leased slots are allowed, and invariants that hold only between writes are not examined.
    `max_trained_count`: None uses the trainer's stored configuration, or 1. `newest_step`: None uses the newest
    announced policy version of the surviving history.
    """
    report = AuditReport(store.run)
    if running:
        for check in (Check.SURVIVING, Check.MARKS, Check.ACCOUNTS):
            report.results[check].note = "not examined while running"
        for check in (Check.DROPPED, Check.GROUPS):
            report.results[check].note = "while running: of settled groups"
    scope = await _scope(store, running, max_trained_count, newest_step)
    async for ids in _in_batches(store.stored.groups(), GROUPS_AT_ONCE):
        report.merge(await audit_groups(store, ids, scope))
    await audit_tools(store, report)
    await audit_rules(store, report)
    if not running:
        await audit_trained_steps(store, report, scope)
    for status, reasons in report.set_aside.items():
        report.counts[f"records {status}"] = sum(reasons.values())
    return report


async def _in_batches(ids: AsyncIterator[Any], size: int) -> AsyncIterator[list[Any]]:
    batch: list[Any] = []
    async for one in ids:
        batch.append(one)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def _scope(store: Store, running: bool, max_trained_count: int | None, newest_step: int | None) -> AuditScope:
    policies = await store.questions.policies()
    settings = await store.settings.last(await store.runs.get())
    limits, newest = {}, {}
    for policy in policies:
        own = int(settings.get(trainer_kind(policy), {}).get("max_trained_count", 1))
        limits[policy] = own if max_trained_count is None else max_trained_count
        version = await store.versions.newest(policy)
        announced = version.step if version else 0
        newest[policy] = announced if newest_step is None else newest_step
    return AuditScope(running, limits, newest)
