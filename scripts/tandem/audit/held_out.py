"""The audit of held-out episodes: they are of the evaluated weights, and no training data."""

from collections.abc import Sequence, Set

from shared.documents import Task
from shared.documents.states import SlotStatus
from shared.names import TRAIN_SPLIT
from shared.store import Store
from tandem.audit.report import AuditReport, Check


async def audit_held_out(store: Store, report: AuditReport, tasks: Sequence[Task], with_data: Set[str]) -> None:
    """Check scored slots of held-out tasks by the versions that the engine reported with replies of the task's policy."""
    scored = [
        (task, slot.record_id)
        for task in tasks
        for slot in task.slots
        if task.split != TRAIN_SPLIT and slot.status is SlotStatus.SCORED and slot.record_id is not None
    ]
    if not scored:
        return
    dispatches = await store.stored.sampled_versions([record for _, record in scored])
    for task, record in scored:
        own = [d for d in dispatches[record] if d.get("policy") in (None, task.policy)]
        versions = {version for d in own for version, _ in d.get("weight_versions", ())}  # none: it was not answered
        text = f"{record}: sampled by versions {sorted(versions)}; expected only {task.at_version}"
        report.expect(Check.EVALUATED, task.at_version is None or versions <= {task.at_version}, text)
        report.expect(Check.EVALUATED, record not in with_data, f"{record}: split {task.split}, and has training data")
