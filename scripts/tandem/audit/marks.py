"""The audit of marks since an earlier one: of everything that a step after it trained, or that a resume took from a step.

    steps above the last one that was compared, or above the step of a resume since
        ─▶ tasks that their reports name (of undone steps too), and those with such a mark on data or record
        ─▶ marks on data and record, the accounts of these steps, and earlier steps that trained the same tasks

While the run is active, steps are compared up to the last that its newest trainer reported: their marks are written.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from shared.documents import DBRecordData
from shared.documents.run import TrainedStep
from shared.store import Store
from tandem.audit.data import audit_record_marks, audit_steps_of
from tandem.audit.groups import BETWEEN_EXAMINATIONS_S, EXAMINATIONS, audit_once
from tandem.audit.position import MarkPosition
from tandem.audit.report import AuditReport, Check
from tandem.audit.scope import TASKS_PER_QUERY, AuditScope
from tandem.audit.steps import audit_steps, expect_few, parts_of

NO_LIMIT = 2**62


async def audit_new_marks(
    store: Store, report: AuditReport, scope: AuditScope, policy: str, position: MarkPosition
) -> MarkPosition:
    """Returns the new position. It is the old one if a trainer started meanwhile, or if something is wrong: it is found again
    until it is repaired."""
    for remaining in reversed(range(EXAMINATIONS if scope.running else 1)):
        part = AuditReport(store.run)
        starts = await _starts(store, policy)
        reached = await _audit_marks(store, part, scope, policy, position, starts)
        started = await _starts(store, policy) != starts
        if not started and (part.ok or not remaining):
            report.merge(part)
            return reached if part.ok else position
        if remaining:
            await asyncio.sleep(BETWEEN_EXAMINATIONS_S)  # no condition to wait for: a write that is under way ends
    report.results[Check.MARKS].note = f"not examined: a trainer of policy {policy} started meanwhile"
    return position


async def last_marks(store: Store, policy: str, newest: int) -> MarkPosition:
    """The position after an audit of everything. `newest`: the step of the newest weights; later marks are compared again."""
    numbers = await store.stored_steps.step_numbers(policy)
    return MarkPosition(step=min(newest, max(numbers, default=-1)), starts=len(await _starts(store, policy)))


async def _starts(store: Store, policy: str) -> list[int]:
    run = await store.runs.get()
    return run.starts.get(policy, []) if run else []


async def _audit_marks(
    store: Store, report: AuditReport, scope: AuditScope, policy: str, position: MarkPosition, starts: Sequence[int]
) -> MarkPosition:
    after = min([position.step, *starts[position.starts :], scope.newest[policy]])
    until = await _last_written(store, policy, starts) if scope.running else NO_LIMIT
    numbers = [number for number in await store.stored_steps.step_numbers(policy, after) if number <= until]
    trained: dict[str, list[int]] = defaultdict(list)
    for first, last in parts_of(numbers):
        for step in await audit_steps(store, report, scope, policy, starts, first, last):
            for task, _ in step.groups:
                trained[task].append(step.step)
    await _audit_repetitions(store, report, policy, list(trained), starts, scope.limits[policy])
    tasks = sorted(await store.stored_steps.tasks_trained_after(policy, after))
    for start in range(0, len(tasks), TASKS_PER_QUERY):
        await _audit_tasks(store, report, scope, policy, tasks[start : start + TASKS_PER_QUERY], until)
    reached = max(numbers, default=after)
    return MarkPosition(step=max(after, min(reached, until)), starts=len(starts))


async def _last_written(store: Store, policy: str, starts: Sequence[int]) -> int:
    """The last step whose marks are all written: a trainer reports a step after its marks, and undoes those of an earlier
    trainer before its first step."""
    if not starts:
        return -1
    reported = await store.stored_steps.last_reported(policy, len(starts))
    return starts[-1] if reported is None else reported


async def _audit_repetitions(
    store: Store, report: AuditReport, policy: str, tasks: Sequence[str], starts: Sequence[int], limit: int
) -> None:
    for start in range(0, len(tasks), TASKS_PER_QUERY):
        part = set(tasks[start : start + TASKS_PER_QUERY])
        steps_of: dict[str, list[int]] = defaultdict(list)
        steps: list[TrainedStep] = await store.stored_steps.steps_that_trained(policy, list(part))
        for step in steps:
            for task, _ in step.groups if step.survives(starts) else ():
                if task in part:
                    steps_of[task].append(step.step)
        expect_few(report, policy, steps_of, limit)


async def _audit_tasks(
    store: Store, report: AuditReport, scope: AuditScope, policy: str, tasks: Sequence[str], until: int
) -> None:
    stored = await store.stored.data(tasks)
    records = await store.stored.records_of(tasks)
    audit_once(report, stored, records)
    for data in report.read_all(DBRecordData, stored):
        if data.policy != policy:
            continue
        audit_steps_of(report, data, scope)
        if max([*data.trained_steps, -1]) <= until:
            audit_record_marks(report, data, records.get(data.record))
