"""The audit of what is new since an earlier one. It costs in proportion to that, on a run of any length.

    first time     the whole run
    afterwards     groups settled since, and those under way; tools and rules that they name;
                   marks and accounts of the steps since, and of all that a resume has undone (`marks.py`)

A settled group's slots, records, tokens and advantages do not change any more and are examined once: a document that is deleted
or changed by hand afterwards is found by an audit of the whole run alone.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from shared.errors import DataError
from shared.store import Store
from shared.store.pipelines import EPOCH
from shared.store.settled import SettledPlace, settled_after
from tandem.audit.marks import audit_new_marks, last_marks
from tandem.audit.position import AuditPosition, MarkPosition
from tandem.audit.processes import LARGE_RUN
from tandem.audit.report import AuditReport, Check
from tandem.audit.rules import audit_rules
from tandem.audit.run import (
    GROUPS_AT_ONCE,
    AuditOptions,
    audit,
    audit_batches,
    finished,
    in_batches,
    scope_of,
    with_notes,
)
from tandem.audit.scope import AuditScope
from tandem.audit.tools import audit_tools

OVERLAP = timedelta(minutes=1)  # a group may be seen after one that was settled later
PAGE = 1_000


async def audit_since(
    store: Store, position: AuditPosition | None, options: AuditOptions
) -> tuple[AuditReport, AuditPosition | None]:
    """Returns the report and the new position; None: the whole run was examined and has violations.

    Later, what has a violation is examined again until it is repaired: the batch of the group, or the policy's steps.
    """
    run = await store.runs.get()
    if run is None:
        raise DataError(f"run {store.run} has no document of its own; nothing can be examined")
    if position is not None:
        position.check(run, store.run)
    settled_at, recent = await store.stored.last_settled(OVERLAP) or (EPOCH, [])
    scope = await scope_of(store, options)
    again: list[str] = []
    if position is None:
        report = await audit(store, options)
        marks = {policy: MarkPosition() for policy in scope.limits}
    else:
        report = with_notes(AuditReport(store.run), options.running)
        again = await _audit_new_groups(store, report, scope, position, options)
        marks = {policy: position.marks.get(policy, MarkPosition()) for policy in scope.limits}
    for policy, compared in marks.items():
        if position is None and not options.running:
            marks[policy] = await last_marks(store, policy, scope.newest[policy])
        else:
            report.results[Check.MARKS].note = report.results[Check.ACCOUNTS].note = ""
            marks[policy] = await audit_new_marks(store, report, scope, policy, compared)
    if position is None and not report.ok:
        return report, None
    return finished(report), AuditPosition(
        run=store.run,
        created_at=run.created_at,
        settled_at=settled_at,
        recent=recent,
        again=again,
        marks=marks,
    )


async def _audit_new_groups(
    store: Store, report: AuditReport, scope: AuditScope, position: AuditPosition, options: AuditOptions
) -> list[str]:
    """Returns the groups that are to be examined again."""
    settled = [task async for task in _settled_since(store, position)]
    tasks = sorted({*settled, *position.again, *await store.stored.under_way()})
    if len(tasks) < LARGE_RUN:
        options = replace(options, processes=None)
    again = await audit_batches(store, report, in_batches(_each(tasks), GROUPS_AT_ONCE), scope, options)
    named = AuditReport(store.run)
    await audit_tools(store, named, tasks)
    await audit_rules(store, named, tasks)
    report.merge(named)
    report.add("groups settled since", len(settled))
    return again if named.ok else tasks


async def _settled_since(store: Store, position: AuditPosition) -> AsyncIterator[str]:
    recent = set(position.recent)
    place = SettledPlace(max(EPOCH, position.settled_at - OVERLAP))
    while page := await settled_after(store, place, PAGE):
        for group in page:
            if group.task not in recent:
                yield group.task
        place = page[-1]


async def _each(tasks: Sequence[Any]) -> AsyncIterator[Any]:
    for task in tasks:
        yield task
