"""The pipelines of the task verbs: a slot is claimed, released or closed by one atomic update."""

from collections.abc import Sequence
from typing import Any

from shared.documents import Claim
from shared.documents.states import CLAIMABLE, SlotStatus, TaskStatus
from shared.store.pipelines import (
    ALL_SLOTS_DONE,
    EPOCH,
    FIRST_DEADLINE,
    LEAST_FREE_AT,
    NOW,
    after,
    is_slot,
    literal,
    merge_slot,
)

Document = dict[str, Any]
CLAIMABLE_NOW: Document = {"status": {"$in": CLAIMABLE}, "$expr": {"$lte": ["$free_at", NOW]}}


def playable_without(scorers: Sequence[str], tools: bool) -> Document:
    """Filter of tasks that need none of these scorers and, if `tools`, no tools."""
    filters: Document = {"payload.scorer": {"$nin": list(scorers)}} if scorers else {}
    return filters | ({"payload.tools": {"$in": [None, []]}} if tools else {})


def holding(claim: Claim, worker: str | None = None) -> Document:
    """Filter of every write under a lease, and its only fence: the update's pipeline need not check again.

    `attempt` refuses a claim whose slot was leased again; the state, one whose slot is open or failed after an expired lease.
    `worker`: and only while it has the slot.
    """
    held: Document = {"traj_id": claim.traj_id, "attempt": claim.attempt, "status": SlotStatus.LEASED}
    held |= {} if worker is None else {"worker": worker}
    return {"_id": claim.task.id, "slots": {"$elemMatch": held}}


def close_group() -> list[Document]:
    """Stages after every change of a slot: update the task's times, and complete the task with its last slot.

    A completed task's `free_at` is for settlement: a time in the past, so that any settler may claim it.
    """
    closing = {"$and": [ALL_SLOTS_DONE, {"$in": ["$status", CLAIMABLE]}]}
    return [
        {
            "$set": {
                "free_at": {"$cond": [closing, {"$literal": EPOCH}, LEAST_FREE_AT]},
                "waiting_until": FIRST_DEADLINE,
            }
        },
        {
            "$set": {
                "completed_at": {"$cond": [closing, NOW, "$completed_at"]},
                "status": {"$cond": [closing, TaskStatus.COMPLETED.value, "$status"]},
            }
        },
    ]


def claim_pipeline(worker: str, lease_s: float, max_failures: int, *, untold: bool = False) -> list[Document]:
    expired = {"$and": [{"$eq": ["$$s.status", SlotStatus.LEASED]}, {"$lte": ["$$s.free_at", NOW]}]}
    failures = {"$add": ["$$s.failures", {"$cond": ["$$s.untold", 0, 1]}]}
    over = {"$gte": [failures, max_failures]}
    reopened = {
        "status": {"$cond": [over, SlotStatus.FAILED.value, SlotStatus.OPEN.value]},
        "failures": failures,
        "error": {"$concat": ["lease of ", {"$ifNull": ["$$s.worker", "?"]}, " expired"]},
    }
    free = {"$and": [{"$eq": ["$$s.status", SlotStatus.OPEN]}, {"$lte": ["$$s.free_at", NOW]}]}
    first_free = {
        "$ifNull": [{"$min": {"$map": {"input": _filter_slots(free), "as": "s", "in": "$$s.traj_id"}}}, literal(-1)]
    }
    leased = {
        "status": SlotStatus.LEASED.value,
        "worker": literal(worker),
        **({"untold": True} if untold else {}),
        "attempt": {"$add": ["$$s.attempt", 1]},
        "free_at": after(lease_s),
    }
    return [
        {"$set": {"slots": merge_slot(expired, reopened, without="untold")}},
        {"$set": {"last_claimed": first_free}},
        {
            "$set": {
                "status": TaskStatus.RUNNING.value,
                "slots": merge_slot(is_slot("$last_claimed"), leased),
            }
        },
        *close_group(),
    ]


def _filter_slots(condition: Document) -> Document:
    return {"$filter": {"input": "$slots", "as": "s", "cond": condition}}
