"""The audit of groups: reads everything that a number of tasks have, each document once, and examines it.

    tasks ─▶ records, training data (by task) ─▶ dispatches of records with data, a bounded number of tokens at once

A group is examined by itself, so that groups can be examined in any order, by several processes, or only those that are new.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.documents import DBRecordData, DispatchedSamplingTask, Record, Task
from shared.documents.states import NEVER_OPENED, OVER, DataStatus
from shared.store import Store
from tandem.audit.data import Owner, audit_data
from tandem.audit.experts import audit_experts
from tandem.audit.forks import audit_forks
from tandem.audit.held_out import audit_held_out
from tandem.audit.report import AuditReport, Check
from tandem.audit.scope import AuditScope
from tandem.audit.slots import Episodes, audit_slots

Stored = dict[str, Any]
RECORDS_AT_ONCE, TOKENS_AT_ONCE = 256, 500_000  # whose dispatches are in memory
EXAMINATIONS = 3  # of groups of a run that is active, before a violation counts: it may be between two writes
BETWEEN_EXAMINATIONS_S = 0.5


async def audit_groups(store: Store, tasks: Sequence[Any], scope: AuditScope) -> AuditReport:
    """Examine the groups of these tasks, by id. A task that does not exist, or was never opened, may have training data."""
    report, settled = await _audit_groups(store, tasks, scope)
    for _ in range(EXAMINATIONS - 1 if scope.running and not settled else 0):
        if report.ok:
            break
        await asyncio.sleep(BETWEEN_EXAMINATIONS_S)  # no condition to wait for: a write that is under way ends
        report, _ = await _audit_groups(store, tasks, scope)
    return report


async def _audit_groups(store: Store, ids: Sequence[Any], scope: AuditScope) -> tuple[AuditReport, bool]:
    """The report, and whether every group is settled. Nothing writes to a settled group any more."""
    report = AuditReport(store.run)
    stored = await store.stored.tasks(ids)
    opened = [document for document in stored.values() if document.get("status") not in NEVER_OPENED]
    tasks = report.read_all(Task, opened)
    data, records = await asyncio.gather(store.stored.data(ids), store.stored.records_of(ids))
    named = [slot.record_id for task in tasks for slot in task.slots if slot.record_id is not None]
    named += [document["record"] for document in data if isinstance(document.get("record"), str)]
    elsewhere = [name for name in named if name not in records]
    if elsewhere:
        records |= await store.stored.records(elsewhere)
    episodes = {name: report.read(Record, records[name]) for name in dict.fromkeys(named) if name in records}
    audit_once(report, data, records)
    _audit_sizes(report, data, stored, scope)
    _count_set_aside(report, data)
    with_data = {document["record"] for document in data if isinstance(document.get("record"), str)}
    context = Episodes(episodes, with_data, await store.questions.server_time())
    for task in tasks:
        audit_slots(report, task, context, running=scope.running)
    await audit_held_out(store, report, tasks, with_data)
    await audit_forks(store, report, tasks)
    for part in _parts(report.read_all(DBRecordData, data)):
        dispatches = await store.stored.dispatches([one.record for one in part])
        read = {name: report.read_all(DispatchedSamplingTask, those) for name, those in dispatches.items()}
        await audit_experts(store, report, (dispatch for those in read.values() for dispatch in those))
        for one in part:
            owner = Owner(records.get(one.record), episodes.get(one.record), stored.get(one.task))
            audit_data(report, one, owner, {dispatch.id: dispatch for dispatch in read[one.record]}, scope)
    return report, all(document.get("status") in OVER for document in stored.values())


def _parts(data: Sequence[DBRecordData]) -> Iterator[list[DBRecordData]]:
    """Parts of bounded size, each with all data of its records."""
    by_record: dict[str, list[DBRecordData]] = defaultdict(list)
    for one in data:
        by_record[one.record].append(one)
    part: list[DBRecordData] = []
    records = tokens = 0
    for those in by_record.values():
        part += those
        records, tokens = records + 1, tokens + sum(one.num_tokens for one in those)
        if records >= RECORDS_AT_ONCE or tokens >= TOKENS_AT_ONCE:
            yield part
            part, records, tokens = [], 0, 0
    if part:
        yield part


def audit_once(report: AuditReport, data: Sequence[Stored], records: Mapping[str, Stored]) -> None:
    """Check that no slot has two trained records, or two sets of training data for a policy."""
    trained: dict[str, list[str]] = defaultdict(list)
    for record in records.values():
        if _is_positive(record.get("trained_count")):
            trained[repr((record.get("task"), record.get("traj_id")))].append(record["_id"])
    sets: dict[str, list[str]] = defaultdict(list)
    for document in data:
        report.expect(Check.ONCE, True)
        name = str(document.get("record"))
        slot = name.rpartition(":")[0] or name  # without the attempt
        sets[repr((slot, document.get("policy")))].append(document["_id"])
    for what, groups in (("trained records", trained), ("sets of training data", sets)):
        for ids in groups.values():
            if len(ids) > 1:
                report.expect(Check.ONCE, False, f"one slot has {len(ids)} {what}: {', '.join(sorted(ids))}")


def _audit_sizes(report: AuditReport, data: Sequence[Stored], tasks: Mapping[str, Stored], scope: AuditScope) -> None:
    """Check that a group has as much training data as each of it says, but what settlement dropped."""
    sizes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for document in data:
        if _is_positive(document.get("group_size")):
            sizes[str(document.get("task")), str(document.get("policy"))].append(document["group_size"])
    for (task, policy), group in sizes.items():
        if not scope.running or tasks.get(task, {}).get("status") in OVER:
            _audit_size(report, task, policy, group)


def _audit_size(report: AuditReport, task: str, policy: str, group: Sequence[float]) -> None:
    expected = sorted(set(group))
    report.expect(
        Check.GROUPS,
        expected == [len(group)],
        lambda: (
            f"{task}: {len(group)} sets of training data for policy {policy}; its group was settled with "
            f"{' or '.join(map(str, expected))}"
        ),
    )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _count_set_aside(report: AuditReport, data: Sequence[Stored]) -> None:
    for document in data:
        status = document.get("status")
        if status in (DataStatus.STALE, DataStatus.DROPPED):
            reasons = report.set_aside.setdefault(str(status), {})
            reason = document.get("reason") or "no reason given"
            reasons[reason] = reasons.get(reason, 0) + 1
