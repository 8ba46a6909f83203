"""The bias ledger's documents: every ended episode of the last groups, with what became of it.

trained     its data is part of a step
waiting     its data is ready, or its group is not settled yet: not decided, and outside every comparison
set aside   settlement dropped it, or the trainer found it stale: `reason`
failed      infrastructure, without a score: `reason` is its termination
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shared.documents.passing import num_passed
from shared.documents.states import PLAYED, DataStatus, RecordStatus, TaskStatus
from shared.names import TRAIN_SPLIT
from shared.store.views.groups import difficulty
from shared.store.views.query import Database, Document, Query

MOST_GROUPS = 2_000
AT_ONCE = 500  # groups whose documents one query reads
TRAINED, WAITING, SET_ASIDE, FAILED = "trained", "waiting", "set aside", "failed"


@dataclass(frozen=True, slots=True)
class Fate:
    """One episode of the ledger."""

    record: str
    group: str
    source: str
    difficulty: str
    tokens: int
    seconds: float | None
    turns: int
    version: int | None  # the oldest that sampled it
    termination: str
    fate: str
    reason: str


def groups_query(policy: str, before: int | None, groups: int) -> Query:
    """The newest played groups below a `seq`."""
    below = {} if before is None else {"seq": {"$lt": before}}
    return Query(
        "the groups of this ledger",
        "tasks",
        {"policy": policy, "split": TRAIN_SPLIT, "status": {"$in": PLAYED}, **below},
        {"scores": 1, "status": 1, "seq": 1},
        [("seq", -1)],
        groups,
    )


async def fates(database: Database, policy: str, before: int | None, groups: int) -> tuple[list[Fate], list[Query]]:
    listing = groups_query(policy, before, groups)
    tasks = {document["_id"]: document for document in await listing.run(database)}
    rows: list[Fate] = []
    queries: list[Query] = []
    names = list(tasks)
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        records, data = _records_query(some), _data_query(some)
        queries = [listing, records, data]
        marks = {one["record"]: one for one in await data.run(database) if one["policy"] == policy}
        ended = [one for one in await records.run(database) if one.get("termination") is not None]
        rows += [_fate(r, tasks[r["task"]], marks.get(r["_id"])) for r in ended]
    return rows, queries or [listing]


# Both ask by task alone: with the policy or the termination too, the planner may take an index of that and read the whole run.
def _records_query(tasks: Iterable[str]) -> Query:
    fields = ("task", "source", "status", "num_tokens", "num_turns", "policy_versions", "termination", "reason")
    ended = {"$nin": [RecordStatus.RUNNING.value, RecordStatus.COMPLETED.value]}
    return Query(
        "their episodes",
        "records",
        {"task": {"$in": list(tasks)}, "status": ended},
        dict.fromkeys((*fields, "created_at", "finished_at"), 1),
        limit=AT_ONCE * 512,
    )


def _data_query(tasks: Iterable[str]) -> Query:
    return Query(
        "what became of their data",
        "record_data",
        {"task": {"$in": list(tasks)}},
        dict.fromkeys(("record", "policy", "status", "reason", "trained_count"), 1),
        limit=AT_ONCE * 512,
    )


def _fate(record: Document, task: Document, data: Document | None) -> Fate:
    scores = [score for score in task.get("scores") or [] if score is not None]
    fate, reason = _decided(record, task, data)
    versions = record.get("policy_versions") or []
    ended = record.get("finished_at") and record.get("created_at")
    return Fate(
        record=record["_id"],
        group=record["task"],
        source=str(record.get("source")),
        difficulty=difficulty(num_passed(scores), len(scores)).replace("_", " ") if scores else "no score",
        tokens=int(record.get("num_tokens") or 0),
        seconds=(record["finished_at"] - record["created_at"]).total_seconds() if ended else None,
        turns=int(record.get("num_turns") or 0),
        version=min(versions) if versions else None,
        termination=str(record.get("termination")),
        fate=fate,
        reason=reason,
    )


def _decided(record: Document, task: Document, data: Document | None) -> tuple[str, str]:
    if record["status"] == RecordStatus.FAILED:
        return FAILED, str(record.get("termination") or "failed")
    if data is None:
        over = task["status"] != TaskStatus.COMPLETED
        return (SET_ASIDE, str(record.get("reason") or "no training data")) if over else (WAITING, "")
    if data.get("trained_count"):
        return TRAINED, ""
    if data["status"] in (DataStatus.DROPPED, DataStatus.STALE):
        return SET_ASIDE, f"{data['status']}: {data.get('reason') or 'no reason given'}"
    return WAITING, ""
