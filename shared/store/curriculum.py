"""The curriculum's update: the next epoch's task is skipped if this group's pass rate is outside its band."""

from typing import Any

from shared.documents import Task, task_id
from shared.documents.passing import num_passed
from shared.documents.states import SlotStatus, TaskStatus
from shared.names import TRAIN_SPLIT

Document = dict[str, Any]


def skipping(task: Task) -> tuple[Document, Document] | None:
    """Filter and update of the next epoch's task; None: the group has no scores, or is none of training: a fork's further
    groups are no later epochs of it."""
    if task.split != TRAIN_SPLIT:
        return None
    scores = [slot.score for slot in task.slots if slot.status is SlotStatus.SCORED and slot.score is not None]
    if not scores:
        return None
    rate = num_passed(scores) / len(scores)
    outside = [{"payload.min_pass_rate": {"$gt": rate}}, {"payload.max_pass_rate": {"$lt": rate}}]
    where: Document = {
        "_id": task_id(task.policy, task.split, task.epoch + 1, task.tid),
        "status": TaskStatus.CREATED.value,
        "$or": outside,
    }
    outcome = f"skipped: {num_passed(scores)} of {len(scores)} episodes passed in epoch {task.epoch}"
    change = {"status": TaskStatus.SKIPPED.value, "outcome": outcome}
    return where, {"$set": change, "$currentDate": {"settled_at": True}}
