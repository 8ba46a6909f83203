"""The pipelines of the task verbs: a slot is claimed, released or closed by one atomic update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import ASCENDING, DESCENDING

from shared.documents import Claim, Task
from shared.documents.rules import FIRST
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
    map_slots,
    merge_slot,
)

Document = dict[str, Any]
# Open groups first, "running" before "created"; of one status those that have been free for longest, never claimed ones by `seq`.
CLAIM_ORDER = [("status", DESCENDING), ("free_at", ASCENDING), ("seq", ASCENDING)]
CLAIMABLE_NOW: Document = {"status": {"$in": CLAIMABLE}, "$expr": {"$lte": ["$free_at", NOW]}}

IS_SET_ASIDE: Document = {"$eq": ["$unforeseen.set_aside", True]}
SET_ASIDE = "the task is set aside: its episodes met bugs"


@dataclass(frozen=True, slots=True)
class Unplayable:
    """Tasks that a process leaves: of this sampler (None: that name none), with this scorer (None: any), and, if
    `with_tools`, that name tools; if `without_scorer`, that name no scorer."""

    sampler: str | None
    scorer: str | None = None
    with_tools: bool = False
    without_scorer: bool = False


def playable_without(unplayable: Sequence[Unplayable], full_environments: Sequence[str] = ()) -> Document:
    """Filter of tasks that are none of these, and of none of these environments."""
    kinds: list[Document] = []
    for one in unplayable:
        kind: Document = {"payload.sampler": one.sampler}
        if one.scorer is not None:
            kind["$or"] = [{"payload.scorer": one.scorer}, {"payload.scorers.name": one.scorer}]
        if one.without_scorer:
            kind |= {"payload.scorer": None, "payload.scorers": {"$in": [None, []]}}
        kinds.append(kind | ({"payload.tools": {"$nin": [None, []]}} if one.with_tools else {}))
    if full_environments:
        kinds.append({"payload.metadata.environment": {"$in": list(full_environments)}})
    return {"$nor": kinds} if kinds else {}


def ready_to_settle(left: Sequence[str] | None) -> Document:
    """Filter of completed groups that these group scorers need not score any more; None: that none need score."""
    ready: list[Document] = [
        {"slots.group_scorers": {"$exists": False}},
        {"group_scores.0": {"$exists": True}},
        {"scoring.given_up": True},
    ]
    if left is None:
        return {"$or": ready}
    return {"$or": [*ready, {"slots.group_scorers.name": {"$nin": list(left)}}]} if left else {}


def settled_by(rules: Sequence[int] | None) -> Document:
    """Filter of groups with rules of these numbers. One that was opened before there were rules has the first."""
    if rules is None:
        return {}
    return {"rules": {"$in": [*rules, None] if FIRST in rules else list(rules)}}


def due_for_settlement(
    policy: str, left: Sequence[str] | None, rules: Sequence[int] | None, completed_s: float = 0.0
) -> Document:
    """Filter of completed groups that no settler has. `left`, `rules`: as for `ready_to_settle` and `settled_by`; `completed_s`:
    complete for so long."""
    due: Document = {"$lte": ["$free_at", NOW]}
    if completed_s:
        due = {"$and": [due, {"$lte": ["$completed_at", after(-completed_s)]}]}
    completed: Document = {"policy": policy, "status": TaskStatus.COMPLETED.value, "$expr": due}
    return completed | ready_to_settle(left) | settled_by(rules)


def leased_for_settlement(worker: str, lease_s: float) -> list[Document]:
    return [{"$set": {"free_at": after(lease_s), "settler": literal(worker)}}]


def opened_by(rules: Sequence[int] | None) -> Document:
    """The same, or groups that are not open yet."""
    return {} if rules is None else {"$or": [{"status": TaskStatus.CREATED.value}, settled_by(rules)]}


def holding(claim: Claim, worker: str | None = None) -> Document:
    """Filter of every write under a lease, and its only fence: the update's pipeline need not check again.

    `attempt` refuses a claim whose slot was leased again; the state, one whose slot is open or failed after an expired lease.
    `worker`: and only while it has the slot.
    """
    held: Document = {"traj_id": claim.traj_id, "attempt": claim.attempt, "status": SlotStatus.LEASED}
    held |= {} if worker is None else {"worker": worker}
    return {"_id": claim.task.id, "slots": {"$elemMatch": held}}


_IS_LEASED = {"$eq": ["$$s.status", SlotStatus.LEASED.value]}
_LISTED = {"$cond": [{"$isArray": "$slots"}, "$slots", []]}  # a malformed task has none that can be held
_LEASED = {"$filter": {"input": _LISTED, "as": "s", "cond": _IS_LEASED}}
# Projection of a task. `leased`: [traj_id, attempt] of each leased slot.
LEASED_SLOTS: Document = {"leased": {"$map": {"input": _LEASED, "as": "s", "in": ["$$s.traj_id", "$$s.attempt"]}}}


def leaving(claim: Claim, change: Document, more: Sequence[Document] = ()) -> list[Document]:
    """The update of the task whose slot the claim leaves with `change`. `more`: further stages."""
    changed = merge_slot(is_slot(claim.traj_id), change, without="unconfirmed")
    return [{"$set": {"slots": changed}}, *more, *close_group()]


def reopened(claim: Claim, error: str, delay_s: float, max_failures: int) -> Document:
    """The change of a slot whose attempt failed: open after `delay_s`, or failed."""
    failures = {"$add": ["$$s.failures", 1]}
    over = {"$gte": [failures, max_failures]}
    return {
        "status": {"$cond": [over, SlotStatus.FAILED.value, SlotStatus.OPEN.value]},
        "failures": failures,
        "free_at": after(delay_s),
        "record_id": literal(claim.record_id),
        "error": literal(error),
    }


def bug_met(error: str, max_failures: int) -> list[Document]:
    """Stages that count an episode with a bug; with `max_failures` of them, of any slots, the task is set aside."""
    count = {"$add": [{"$ifNull": ["$unforeseen.episodes", 0]}, 1]}
    value = {
        "episodes": count,
        "settlements": {"$ifNull": ["$unforeseen.settlements", 0]},
        "error": literal(error),
        "set_aside": {"$or": [IS_SET_ASIDE, {"$gte": [count, max_failures]}]},
    }
    return [{"$set": {"unforeseen": value}}]


def close_group() -> list[Document]:
    """Stages after every change of a slot: fail the open slots of a task that is set aside, update the task's times, and
    complete the task with its last slot.

    A completed task's `free_at` is for settlement: a time in the past, so that any settler may claim it.
    """
    closing = {"$and": [ALL_SLOTS_DONE, {"$in": ["$status", CLAIMABLE]}]}
    is_open = {"$eq": ["$$s.status", SlotStatus.OPEN.value]}
    failed = {"status": SlotStatus.FAILED.value, "error": {"$ifNull": ["$$s.error", literal(SET_ASIDE)]}}
    return [
        {"$set": {"slots": {"$cond": [IS_SET_ASIDE, merge_slot(is_open, failed), "$slots"]}}},
        {
            "$set": {
                "free_at": {"$cond": [closing, {"$literal": EPOCH}, LEAST_FREE_AT]},
                "waiting_until": FIRST_DEADLINE,
                "completed_at": {"$cond": [closing, NOW, "$completed_at"]},
                "status": {"$cond": [closing, TaskStatus.COMPLETED.value, "$status"]},
            }
        },
    ]


# 6 parameters: what the slots get, and how many
def claim_pipeline(
    worker: str, lease_s: float, max_failures: int, most: int, *, unconfirmed: bool = False, rules: int | None = None
) -> list[Document]:
    """Leases the first `most` free slots. `rules`: the number that a task gets which this claim opens."""
    expired = {"$and": [{"$eq": ["$$s.status", SlotStatus.LEASED]}, {"$lte": ["$$s.free_at", NOW]}]}
    failures = {"$add": ["$$s.failures", {"$cond": ["$$s.unconfirmed", 0, 1]}]}
    over = {"$or": [{"$gte": [failures, max_failures]}, IS_SET_ASIDE]}
    expiry = {
        "status": {"$cond": [over, SlotStatus.FAILED.value, SlotStatus.OPEN.value]},
        "failures": failures,
        "error": {"$concat": ["lease of ", {"$ifNull": ["$$s.worker", "?"]}, " expired"]},
    }
    free = {"$and": [{"$eq": ["$$s.status", SlotStatus.OPEN]}, {"$lte": ["$$s.free_at", NOW]}]}
    first_free = {"$slice": [{"$map": {"input": _filter_slots(free), "as": "s", "in": "$$s.traj_id"}}, most]}
    leased = {
        "status": SlotStatus.LEASED.value,
        "worker": literal(worker),
        **({"unconfirmed": True} if unconfirmed else {}),
        "attempt": {"$add": ["$$s.attempt", 1]},
        "free_at": after(lease_s),
    }
    opening = {"$cond": [{"$eq": ["$status", TaskStatus.CREATED]}, rules, "$rules"]}
    stamp: list[Document] = [{"$set": {"rules": opening}}] if rules is not None else []
    several = {"$gt": [{"$size": "$last_claims"}, 1]}
    return [
        *stamp,
        {"$set": {"slots": merge_slot(expired, expiry, without="unconfirmed")}},
        {"$set": {"last_claims": first_free}},
        {
            "$set": {
                "status": TaskStatus.RUNNING.value,
                "slots": merge_slot({"$in": ["$$s.traj_id", "$last_claims"]}, leased),
                "last_claimed": {"$ifNull": [{"$first": "$last_claims"}, literal(-1)]},
                "last_claims": {"$cond": [several, "$last_claims", "$$REMOVE"]},
            }
        },
        *close_group(),
    ]


def claims_of(task: Task) -> list[Claim]:
    """What the last claim leased; [] if the task had only exhausted slots."""
    one = [] if task.last_claimed in (None, -1) else [task.last_claimed]
    return [Claim(task=task, traj_id=k, attempt=task.slots[k].attempt) for k in task.last_claims or one]


def settled(outcome: str, data_of: Sequence[str], *, abandoned: bool) -> list[Document]:
    change = {
        "status": TaskStatus.ABANDONED if abandoned else TaskStatus.SETTLED,
        "outcome": literal(outcome),
        "data_of": literal(list(data_of)),
        "settled_at": NOW,
        "scores": map_slots("$$s.score"),
    }
    return [{"$set": change}]


def _filter_slots(condition: Document) -> Document:
    return {"$filter": {"input": "$slots", "as": "s", "cond": condition}}
