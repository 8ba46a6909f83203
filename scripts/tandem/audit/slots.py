"""The audit of slots: each is over, and its record belongs to it and has its score."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from shared.documents import Record, Slot, Task
from shared.documents.states import OVER, RecordStatus, SlotStatus
from tandem.audit.report import AuditReport, Check


@dataclass(frozen=True, slots=True)
class Episodes:
    """What slots are compared with: records as their model (None: one that does not fit), records that have training data, and
    the server's time."""

    records: Mapping[str, Record | None]
    with_data: Set[str]
    now: datetime


def audit_slots(report: AuditReport, task: Task, episodes: Episodes, *, running: bool) -> None:
    report.add("tasks opened", 1)
    for slot in task.slots:
        _audit_slot(report, task, slot, episodes, running=running)


def _audit_slot(report: AuditReport, task: Task, slot: Slot, episodes: Episodes, *, running: bool) -> None:
    name = f"{task.id} slot {slot.traj_id}"
    report.add(f"slots {slot.status.value}", 1)
    over = slot.status in (SlotStatus.SCORED, SlotStatus.FAILED, SlotStatus.WAITING)
    report.expect(Check.ENDED, over or running, lambda: f"{name} is {slot.status.value} ({slot.error or 'no error'})")
    if slot.status is SlotStatus.WAITING:
        overdue = not running and slot.free_at <= episodes.now
        sound = slot.score is None and slot.record_id not in episodes.with_data and not overdue
        text = f"{name} waits until {slot.free_at}, now is {episodes.now}; score {slot.score}"
        report.expect(Check.WAITING, sound, text)
    if slot.status is SlotStatus.FAILED:
        report.expect(Check.FAILED, slot.score is None, f"{name} is failed and has score {slot.score}")
        trained = slot.record_id in episodes.with_data
        report.expect(Check.FAILED, not trained, f"{name} is failed; {slot.record_id} is training data")
    if slot.status is SlotStatus.SCORED and slot.score is None:
        report.expect(Check.RECORDS, False, f"{name} is scored and has no score")
    if slot.record_id is not None:
        wrong = _wrong_record(task, slot, episodes)
        report.expect(Check.RECORDS, wrong is None, lambda: f"{name}: record {slot.record_id} {wrong}")
    elif slot.status is SlotStatus.SCORED:
        report.expect(Check.RECORDS, False, f"{name} is scored and names no record")


def _wrong_record(task: Task, slot: Slot, episodes: Episodes) -> str | None:
    if slot.record_id is None or slot.record_id not in episodes.records:
        return "does not exist"
    record = episodes.records[slot.record_id]
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
