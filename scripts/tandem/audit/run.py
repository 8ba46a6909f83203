"""The audit: checks a run's database against the invariants. Read-only; used by tests and `tandem audit RUN`.

    report = await audit(store)
    assert report.ok, report

It reads documents as stored and derives every token sequence again from the dispatches, so that it shares no code with
the sampler that wrote the trees.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from shared.documents import DBRecordData, DispatchedSamplingTask, Record, Slot, Task, data_id
from shared.documents.states import OVER, RecordStatus, SlotStatus
from shared.episodes.state import EpisodeState
from shared.names import TRAIN_SPLIT
from shared.store import Store
from shared.store.settings import trainer_kind
from tandem.audit.forks import audit_forks
from tandem.audit.report import AuditReport, Check
from tandem.audit.rules import audit_rules
from tandem.audit.steps import audit_trained_steps
from tandem.audit.tokens import audit_tokens
from tandem.audit.tools import audit_tools

TASK_BATCH = 500
DATA_BATCH = 32
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
        for check in (Check.SURVIVING, Check.MARKS, Check.ACCOUNTS, Check.DROPPED, Check.GROUPS):
            report.results[check].note = "not examined while running"
    async for batch in _in_batches(store.stored.opened_tasks(), TASK_BATCH):
        await _audit_tasks(store, report, batch, running=running)
    await _audit_once(store, report)
    await audit_tools(store, report)
    await audit_rules(store, report)
    if not running:
        await _audit_groups(store, report)
    limits = await _limits(store, max_trained_count)
    newest = await _newest_steps(store, newest_step)
    if not running:
        await audit_trained_steps(store, report, limits, newest)
    async for batch in _in_batches(store.stored.all_data(), DATA_BATCH):
        await _audit_data(store, report, batch, limits, newest, running=running)
    report.set_aside = await store.questions.set_aside()
    for status, reasons in report.set_aside.items():
        report.counts[f"records {status}"] = sum(reasons.values())
    return report


async def _in_batches(documents: AsyncIterator[dict[str, Any]], size: int) -> AsyncIterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    async for document in documents:
        batch.append(document)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def _limits(store: Store, given: int | None) -> dict[str, int]:
    """{policy: how often its trainer may use one record}."""
    run = await store.runs.get()
    settings = await store.settings.last(run)
    return {
        policy: given if given is not None else int(settings.get(trainer_kind(policy), {}).get("max_trained_count", 1))
        for policy in await store.questions.policies()
    }


async def _newest_steps(store: Store, given: int | None) -> dict[str, int]:
    """{policy: optimizer steps of its newest weights}; 0 if none were announced."""
    steps = {}
    for policy in await store.questions.policies():
        version = await store.versions.newest(policy)
        steps[policy] = given if given is not None else version.step if version else 0
    return steps


# ---------------------------------------------------------------------- slots


async def _audit_tasks(store: Store, report: AuditReport, batch: Sequence[dict[str, Any]], *, running: bool) -> None:
    tasks = report.read_all(Task, batch)
    ids = [slot.record_id for task in tasks for slot in task.slots if slot.record_id is not None]
    records = await store.stored.records(ids)
    with_data = await store.stored.with_data(ids)
    now = await store.questions.server_time()
    await _audit_evaluation(store, report, [task for task in tasks if task.split != TRAIN_SPLIT], with_data)
    await audit_forks(store, report, tasks)
    for task in tasks:
        report.add("tasks opened", 1)
        for slot in task.slots:
            _audit_slot(report, task, slot, records, with_data, now, running=running)


async def _audit_evaluation(store: Store, report: AuditReport, tasks: Sequence[Task], with_data: set[str]) -> None:
    """Check scored slots of held-out tasks by the versions that the engine reported with replies of the task's policy."""
    scored = [
        (task, slot.record_id)
        for task in tasks
        for slot in task.slots
        if slot.status is SlotStatus.SCORED and slot.record_id is not None
    ]
    dispatches = await store.stored.dispatches([record for _, record in scored])
    for task, record in scored:
        own = [d for d in dispatches[record] if d.get("policy") in (None, task.policy)]
        versions = {version for d in own for version, _ in d.get("weight_versions", ())}  # none: it was not answered
        report.expect(
            Check.EVALUATED,
            task.at_version is None or versions <= {task.at_version},
            f"{record}: sampled by versions {sorted(versions)}; expected only {task.at_version}",
        )
        report.expect(Check.EVALUATED, record not in with_data, f"{record}: split {task.split}, and has training data")


# 7 parameters: a slot, and what was read at once for its whole batch
def _audit_slot(
    report: AuditReport,
    task: Task,
    slot: Slot,
    records: Mapping[str, dict[str, Any]],
    with_data: set[str],
    now: datetime,
    *,
    running: bool,
) -> None:
    name = f"{task.id} slot {slot.traj_id}"
    report.add(f"slots {slot.status.value}", 1)
    over = slot.status in (SlotStatus.SCORED, SlotStatus.FAILED, SlotStatus.WAITING)
    report.expect(Check.ENDED, over or running, f"{name} is {slot.status.value} ({slot.error or 'no error'})")
    if slot.status is SlotStatus.WAITING:
        overdue = not running and slot.free_at <= now
        sound = slot.score is None and slot.record_id not in with_data and not overdue
        report.expect(Check.WAITING, sound, f"{name} waits until {slot.free_at}, now is {now}; score {slot.score}")
    if slot.status is SlotStatus.FAILED:
        report.expect(Check.FAILED, slot.score is None, f"{name} is failed and has score {slot.score}")
        report.expect(
            Check.FAILED, slot.record_id not in with_data, f"{name} is failed; {slot.record_id} is training data"
        )
    if slot.status is SlotStatus.SCORED and slot.score is None:
        report.expect(Check.RECORDS, False, f"{name} is scored and has no score")
    if slot.record_id is not None:
        wrong = _wrong_record(report, task, slot, records.get(slot.record_id))
        report.expect(Check.RECORDS, wrong is None, f"{name}: record {slot.record_id} {wrong}")
    elif slot.status is SlotStatus.SCORED:
        report.expect(Check.RECORDS, False, f"{name} is scored and names no record")


def _wrong_record(report: AuditReport, task: Task, slot: Slot, document: dict[str, Any] | None) -> str | None:
    if document is None:
        return "does not exist"
    record = report.read(Record, document)
    if record is None:
        return "cannot be read"
    if (record.task, record.traj_id) != (task.id, slot.traj_id):
        return f"belongs to {record.task} slot {record.traj_id}"
    if record.attempt > slot.attempt:
        return f"is of attempt {record.attempt}; the slot's is {slot.attempt}"
    if slot.status is SlotStatus.WAITING and (record.attempt, record.status) != (slot.attempt, RecordStatus.COMPLETED):
        return (
            f"is {record.status} and of attempt {record.attempt}; its slot waits for feedback in attempt {slot.attempt}"
        )
    if _follows(task, slot, record) or _awaits_group_scores(task, slot, record):
        return None
    if slot.status is SlotStatus.SCORED and (record.attempt, record.score) != (slot.attempt, slot.score):
        return (
            f"is of attempt {record.attempt} with score {record.score}; "
            f"the slot was scored {slot.score} by attempt {slot.attempt}"
        )
    return None


def _follows(task: Task, slot: Slot, record: Record) -> bool:
    """A record that waited gets its slot's score right after the slot, or, if a process died in between, at the settlement."""
    waited = bool(slot.feedback) or slot.score_without_feedback is not None
    behind = record.status is RecordStatus.COMPLETED and record.attempt == slot.attempt
    return waited and behind and task.status not in OVER


def _awaits_group_scores(task: Task, slot: Slot, record: Record) -> bool:
    """A record gets its group's scores right after the slot, or, if a process died in between, at the settlement."""
    behind = record.status is RecordStatus.SCORED and record.attempt == slot.attempt
    return bool(task.group_scores) and behind and task.status not in OVER


async def _audit_once(store: Store, report: AuditReport) -> None:
    for what, groups in (
        ("trained records", await store.stored.slots_trained_twice()),
        ("sets of training data", await store.stored.slots_with_two_data()),
    ):
        for ids in groups:
            report.expect(Check.ONCE, False, f"one slot has {len(ids)} {what}: {', '.join(ids)}")


async def _audit_groups(store: Store, report: AuditReport) -> None:
    async for group in store.stored.groups():
        whose, count, sizes = group["_id"], group["records"], sorted(group["sizes"])
        report.expect(
            Check.GROUPS,
            sizes == [count],
            f"{whose['task']}: {count} sets of training data for policy {whose['policy']}; its group was settled with "
            f"{' or '.join(map(str, sizes))}",
        )


# ---------------------------------------------------------------------- training data


async def _audit_data(
    store: Store,
    report: AuditReport,
    batch: Sequence[dict[str, Any]],
    limits: Mapping[str, int],
    newest: Mapping[str, int],
    *,
    running: bool,
) -> None:
    ids = [document.get("record", document["_id"]) for document in batch]
    records = await store.stored.records(ids)
    dispatches = await store.stored.dispatches(ids)
    tasks = await store.stored.tasks([document["task"] for document in batch])
    for document in batch:
        report.expect(Check.ONCE, True)
        data = report.read(DBRecordData, document)
        if data is None:
            continue
        _count(report, data)
        record = records.get(data.record)
        wrong = _wrong_owner(data, record, tasks.get(data.task))
        report.expect(Check.OWNED, wrong is None, f"{data.id}: {wrong}")
        limit, newest_step = limits.get(data.policy, 1), newest.get(data.policy, 0)
        _audit_steps(report, data, record, limit, newest_step, running=running)
        if not running and record is not None and record["policy"] == data.policy:
            _audit_settled(report, data, record)
        read = {d.id: d for d in report.read_all(DispatchedSamplingTask, dispatches[data.record])}
        if record is not None:
            _audit_policy(report, data, record["policy"], read)
            _audit_episode(report, record, list(read.values()))
        audit_tokens(report, data, read)


def _audit_settled(report: AuditReport, data: DBRecordData, record: Mapping[str, Any]) -> None:
    """Check what settlement wrote to the record itself."""
    stored = record["advantage"]
    if data.group_size == 0:
        right = data.reason is not None and stored is None and not any(d.advantage for d in data.dispatches)
        right = right and (record["status"], record.get("reason")) == (RecordStatus.ABANDONED, data.reason)
        report.expect(
            Check.DROPPED,
            right,
            f"{data.id}: dropped ({data.reason}); its record is {record['status']} ({record.get('reason')}), advantage {stored}",
        )
        return
    mean = math.fsum(d.advantage for d in data.dispatches) / len(data.dispatches)
    right = stored is not None and math.isclose(stored, mean, rel_tol=1e-9, abs_tol=1e-12)
    report.expect(Check.ADVANTAGES, right, f"{data.id}: record has advantage {stored}; the mean of its turns is {mean}")


def _count(report: AuditReport, data: DBRecordData) -> None:
    report.add("records with training data", 1)
    report.add("records trained", int(data.trained_count > 0))
    report.add("tokens", data.num_tokens)
    report.add("tokens with a loss", data.num_trained_tokens)
    report.add("tokens trained", data.num_trained_tokens * data.trained_count)


def _wrong_owner(data: DBRecordData, record: dict[str, Any] | None, task: dict[str, Any] | None) -> str | None:
    if record is None:
        return "has training data and no record"
    if task is None:
        return f"its task {data.task} does not exist"
    if record["task"] != data.task:
        return f"its record is of task {record['task']}; expected {data.task}"
    for slot in task["slots"]:
        if slot["traj_id"] == record["traj_id"]:
            if (slot["status"], slot["record_id"]) == (SlotStatus.SCORED, data.record):
                return None
            return f"its slot is {slot['status']} with record {slot['record_id']}"
    return f"its task has no slot {record['traj_id']}"


def _audit_policy(
    report: AuditReport, data: DBRecordData, owner: str, dispatches: Mapping[str, DispatchedSamplingTask]
) -> None:
    """Check that the id matches the policy, and that all trained turns are that policy's."""
    expected = data_id(data.record, data.policy, owner)
    report.expect(Check.POLICIES, data.id == expected, f"{data.id}: of policy {data.policy}; expected id {expected}")
    for used in data.dispatches:
        dispatch = dispatches.get(used.id)
        if dispatch is None:
            continue  # covered by another check
        whose, sampler = dispatch.policy or owner, dispatch.sampled_by or data.policy
        right = whose == data.policy and (sampler == data.policy or not used.trained)
        text = f"{used.id}, a turn of policy {whose}, was sampled by policy {sampler}"
        report.expect(Check.POLICIES, right, f"{data.id}: trains {text}" if used.trained else f"{data.id}: has {text}")


def _audit_episode(
    report: AuditReport, document: Mapping[str, Any], dispatches: Sequence[DispatchedSamplingTask]
) -> None:
    record = report.read(Record, document)
    if record is None:
        return
    state = EpisodeState(record, [dispatch for dispatch in dispatches if record.includes(dispatch.id)])
    wrong = [f"turn {number} is open" for number in state.open_turns] + state.problems
    report.expect(Check.COMPLETE, not wrong, f"{record.id}: {'; '.join(wrong)}")


def _audit_steps(
    report: AuditReport, data: DBRecordData, record: dict[str, Any] | None, limit: int, newest: int, *, running: bool
) -> None:
    steps = data.trained_steps
    right = len(set(steps)) == len(steps) == data.trained_count <= limit
    right = right and data.last_trained_step == max(steps, default=None)
    report.expect(
        Check.STEPS,
        right,
        f"{data.id}: trained_steps {steps}, trained_count {data.trained_count} of at most {limit}, "
        f"last_trained_step {data.last_trained_step}",
    )
    if running:
        return
    late = [step for step in steps if step > newest]
    report.expect(Check.SURVIVING, not late, f"{data.id}: trained in step {late}; the newest announced is {newest}")
    if record is not None and record["policy"] != data.policy:
        return  # the record has the marks of its own policy's data
    marks = (data.trained_count, data.last_trained_step)
    actual = (record["trained_count"], record["last_trained_step"]) if record else None
    report.expect(Check.MARKS, actual == marks, f"{data.id}: record has (count, last step) {actual}; its data {marks}")
