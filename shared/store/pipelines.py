"""Aggregation expressions shared by the verbs. A pipeline update would interpret a stored text such as "$5" as a field path;
so every stored value is wrapped by `literal`."""

from datetime import datetime
from typing import Any

from shared.documents.states import SlotStatus

Expression = dict[str, Any] | str | int | float | None

NOW = "$$NOW"
EPOCH = datetime(1970, 1, 1)
FAR = datetime(9999, 1, 1)


def literal(value: Any) -> dict[str, Any]:
    return {"$literal": value}


def literals(values: dict[str, Any]) -> dict[str, Any]:
    return {name: literal(value) for name, value in values.items()}


def insert_once(document: dict[str, Any], *, time: str = "created_at") -> list[dict[str, Any]]:
    """An upsert by `_id` that inserts the document with the server's time, in the field `time`, and leaves an existing one
    unchanged."""
    values = {name: value for name, value in document.items() if name not in ("_id", time)}
    new = {"_id": document["_id"], **literals(values), time: NOW}
    return [{"$replaceWith": {"$cond": [{"$eq": ["$$ROOT", {"_id": "$_id"}]}, new, "$$ROOT"]}}]


def after(seconds: float) -> dict[str, Any]:
    """Server time `seconds` from now."""
    return {"$add": [NOW, round(seconds * 1000)]}


def map_slots(change: Expression) -> dict[str, Any]:
    """`slots` with every slot (`$$s`) replaced by `change`."""
    return {"$map": {"input": "$slots", "as": "s", "in": change}}


def merge_slot(condition: Expression, change: dict[str, Any], *, without: str | None = None) -> dict[str, Any]:
    """`slots` with `change` merged into those for which `condition` (over `$$s`) holds, and their field `without` removed."""
    merged: dict[str, Any] = {"$mergeObjects": ["$$s", change]}
    if without is not None:
        merged = {"$unsetField": {"field": without, "input": merged}}
    return map_slots({"$cond": [condition, merged, "$$s"]})


def is_slot(traj_id: int | str) -> dict[str, Any]:
    """True for the slot with this number, or with the number in a field (`$field`). The filter verifies the claim."""
    return {"$eq": ["$$s.traj_id", traj_id]}


# The task's `free_at`: the time from which its next slot may be claimed.
LEAST_FREE_AT: dict[str, Any] = {
    "$ifNull": [
        {
            "$min": {
                "$map": {
                    "input": {
                        "$filter": {
                            "input": "$slots",
                            "as": "s",
                            "cond": {"$in": ["$$s.status", [SlotStatus.OPEN, SlotStatus.LEASED]]},
                        }
                    },
                    "as": "s",
                    "in": "$$s.free_at",
                }
            }
        },
        literal(FAR),
    ]
}

_WAITING = {"$filter": {"input": "$slots", "as": "s", "cond": {"$eq": ["$$s.status", SlotStatus.WAITING]}}}
# The task's `waiting_until`: the first deadline of the feedback that it waits for; null if it waits for none.
FIRST_DEADLINE: dict[str, Any] = {"$min": {"$map": {"input": _WAITING, "as": "s", "in": "$$s.free_at"}}}

ALL_SLOTS_DONE: dict[str, Any] = {
    "$allElementsTrue": {
        "$map": {"input": "$slots", "as": "s", "in": {"$in": ["$$s.status", [SlotStatus.SCORED, SlotStatus.FAILED]]}}
    }
}
