"""The audit of training data: it is of a scored slot's record, its policy and its dispatches, and its marks are the record's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.documents import DBRecordData, DispatchedSamplingTask, Record, data_id
from shared.documents.states import OVER, RecordStatus, SlotStatus
from shared.episodes.state import OPEN, EpisodeState
from tandem.audit.report import AuditReport, Check
from tandem.audit.scope import AuditScope
from tandem.audit.tokens import audit_tokens

TOKEN_BYTES = 4
Stored = Mapping[str, Any]  # a document as it is stored


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose training data it is. `record` and `task`: as stored, None: gone. `episode`: the record as its model, None: it does
    not fit."""

    record: Stored | None
    episode: Record | None
    task: Stored | None


def audit_data(
    report: AuditReport,
    data: DBRecordData,
    owner: Owner,
    dispatches: Mapping[str, DispatchedSamplingTask],
    scope: AuditScope,
) -> None:
    """`dispatches`: by id, the record's that fit their model."""
    _count(report, data)
    record = owner.record
    wrong = _wrong_owner(data, record, owner.task)
    report.expect(Check.OWNED, wrong is None, lambda: f"{data.id}: {wrong}")
    audit_steps_of(report, data, scope)
    if not scope.running:
        audit_record_marks(report, data, record)
    over = owner.task is not None and owner.task.get("status") in OVER
    if (over or not scope.running) and record is not None and record.get("policy") == data.policy:
        _audit_settled(report, data, record)
    if record is not None:
        _audit_policy(report, data, record["policy"], dispatches)
    if owner.episode is not None:
        _audit_episode(report, owner.episode, dispatches)
    audit_tokens(report, data, dispatches)


def _count(report: AuditReport, data: DBRecordData) -> None:
    report.add("records with training data", 1)
    report.add("records trained", int(data.trained_count > 0))
    report.add("tokens", data.num_tokens)
    report.add("tokens with a loss", data.num_trained_tokens)
    report.add("tokens trained", data.num_trained_tokens * data.trained_count)


def _audit_settled(report: AuditReport, data: DBRecordData, record: Stored) -> None:
    """Check what settlement wrote to the record itself."""
    stored = record["advantage"]
    if data.group_size == 0:
        right = data.reason is not None and stored is None and not any(d.advantage for d in data.dispatches)
        right = right and (record["status"], record.get("reason")) == (RecordStatus.ABANDONED, data.reason)
        report.expect(
            Check.DROPPED,
            right,
            lambda: (
                f"{data.id}: dropped ({data.reason}); its record is {record['status']} ({record.get('reason')}), "
                f"advantage {stored}"
            ),
        )
        return
    mean = math.fsum(d.advantage for d in data.dispatches) / len(data.dispatches)
    right = stored is not None and math.isclose(stored, mean, rel_tol=1e-9, abs_tol=1e-12)
    report.expect(
        Check.ADVANTAGES, right, lambda: f"{data.id}: record has advantage {stored}; the mean of its turns is {mean}"
    )


def _wrong_owner(data: DBRecordData, record: Stored | None, task: Stored | None) -> str | None:
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
        if right:
            report.expect(Check.POLICIES, True)
            continue
        text = f"{used.id}, a turn of policy {whose}, was sampled by policy {sampler}"
        report.expect(Check.POLICIES, False, f"{data.id}: trains {text}" if used.trained else f"{data.id}: has {text}")


def _audit_episode(report: AuditReport, record: Record, dispatches: Mapping[str, DispatchedSamplingTask]) -> None:
    asked = [dispatch for dispatch in dispatches.values() if record.includes(dispatch.id)]
    if _is_plain(record, asked):
        report.expect(Check.COMPLETE, True)
        return
    state = EpisodeState(record, asked)
    wrong = [f"turn {number} is open" for number in state.open_turns] + state.problems
    report.expect(Check.COMPLETE, not wrong, f"{record.id}: {'; '.join(wrong)}")


def _is_plain(record: Record, dispatches: Sequence[DispatchedSamplingTask]) -> bool:
    """Whether every turn is written and its parent an earlier one of its policy, which has all that it shares. False: perhaps."""
    lengths: dict[str, tuple[int, str]] = {}  # of prompt and reply, and the policy
    before = -1
    for dispatch in sorted(dispatches, key=lambda d: d.turn):
        policy, shared = dispatch.policy or record.policy, 0
        if dispatch.status in OPEN or dispatch.response is None or dispatch.turn <= before:
            return False
        if dispatch.parent is not None:
            length, whose = lengths.get(dispatch.parent, (-1, ""))
            shared = dispatch.shared_length
            if whose != policy or not 0 <= shared <= length:
                return False
        own = (len(dispatch.prompt_ids) + len(dispatch.response.output_ids)) // TOKEN_BYTES
        lengths[dispatch.id], before = (shared + own, policy), dispatch.turn
    return True


# ---------------------------------------------------------------------- marks


def audit_steps_of(report: AuditReport, data: DBRecordData, scope: AuditScope) -> None:
    """Check the list of steps that trained it by itself."""
    steps, limit = data.trained_steps, scope.limits.get(data.policy, 1)
    right = len(set(steps)) == len(steps) == data.trained_count <= limit
    right = right and data.last_trained_step == max(steps, default=None)
    report.expect(
        Check.STEPS,
        right,
        lambda: (
            f"{data.id}: trained_steps {steps}, trained_count {data.trained_count} of at most {limit}, "
            f"last_trained_step {data.last_trained_step}"
        ),
    )
    if scope.running:
        return
    newest = scope.newest.get(data.policy, 0)
    late = [step for step in steps if step > newest]
    text = f"{data.id}: trained in step {late}; the newest announced is {newest}" if late else ""
    report.expect(Check.SURVIVING, not late, text)


def audit_record_marks(report: AuditReport, data: DBRecordData, record: Stored | None) -> None:
    """Check that the record has the marks of its own policy's data."""
    if record is not None and record["policy"] != data.policy:
        return
    marks = (data.trained_count, data.last_trained_step)
    actual = (record["trained_count"], record["last_trained_step"]) if record else None
    report.expect(
        Check.MARKS,
        actual == marks,
        lambda: f"{data.id}: record has (count, last step) {actual}; its data {marks}",
    )
