"""Tasks and groups: pass rates over time by source, the newest groups, and one group with all its attempts.

A group is one task. Time is its `seq`: the order in which tasks are opened. Long runs are read in samples: `BUCKETS` stretches of
`seq`, of each the first `GROUPS_PER_BUCKET` groups, by the index on (policy, split, seq).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.documents.passing import num_passed
from shared.documents.states import DECIDED, PLAYED, TaskStatus
from shared.store.views.query import Database, Document, Query

BUCKETS = 20
GROUPS_PER_BUCKET = 100
MOST_LISTED = 50
LOOKED_AT = 5_000  # groups, from the newest on, among which a list filters
MOST_ATTEMPTS = 512  # records of one group
MOST_TURNS = 2_000  # of one group, side by side
COMPARED_CHARS = 2_000  # of a reply


@dataclass(slots=True)
class Passed:
    """Of one source, or of all, in a stretch of time: groups by how many of their episodes pass."""

    groups: int = 0
    episodes: int = 0
    passed: int = 0
    failed: int = 0  # episodes without a score
    none_pass: int = 0
    some_pass: int = 0  # fewer than half
    most_pass: int = 0  # half or more
    all_pass: int = 0
    abandoned: int = 0  # groups without training data
    score_sum: float = 0.0

    @property
    def rate(self) -> float | None:
        return self.passed / self.episodes if self.episodes else None

    @property
    def mean_score(self) -> float | None:
        return self.score_sum / self.episodes if self.episodes else None

    def add(self, document: Document) -> None:
        scores = [score for score in document.get("scores") or [] if score is not None]
        passes = num_passed(scores)
        self.groups += 1
        self.episodes += len(scores)
        self.passed += passes
        self.score_sum += sum(scores)
        self.failed += len(document.get("scores") or []) - len(scores)
        self.abandoned += document.get("status") == TaskStatus.ABANDONED
        if scores:
            name = difficulty(passes, len(scores))
            setattr(self, name, getattr(self, name) + 1)


def difficulty(passes: int, episodes: int) -> str:
    """The band of a group by its own episodes: a name of `Passed`."""
    if passes in (0, episodes):
        return "none_pass" if passes == 0 else "all_pass"
    return "most_pass" if 2 * passes >= episodes else "some_pass"


@dataclass(frozen=True)
class Stretch:
    """Groups with first <= seq < end, of which those before `read_until` were read."""

    first: int
    end: int
    read_until: int
    every: Passed = field(default_factory=Passed)
    by_source: dict[str, Passed] = field(default_factory=lambda: defaultdict(Passed))


async def pass_rates(database: Database, policy: str, split: str) -> tuple[list[Stretch], Query]:
    """Over the whole run, in time."""
    newest = Query(
        "the newest played task",
        "tasks",
        {"policy": policy, "split": split, "status": {"$in": PLAYED}},
        {"seq": 1},
        [("seq", -1)],
        1,
    )
    last = [document["seq"] for document in await newest.run(database)]
    stretches = _stretches(last[0] + 1 if last else 0)
    ranges: list[Document] = [{"seq": {"$gte": s.first, "$lt": s.read_until}} for s in stretches] or [{"seq": -1}]
    query = Query(
        "scores of the groups, in a sample of the run",
        "tasks",
        {"policy": policy, "split": split, "$or": ranges, "status": {"$in": DECIDED}},
        {"source": 1, "seq": 1, "scores": 1, "status": 1},
        limit=BUCKETS * GROUPS_PER_BUCKET,
    )
    for document in await query.run(database):
        stretch = next(s for s in stretches if s.first <= document["seq"] < s.end)
        stretch.every.add(document)
        stretch.by_source[str(document["source"])].add(document)
    return [s for s in stretches if s.every.groups], query


def _stretches(groups: int) -> list[Stretch]:
    width = max(1, -(-groups // BUCKETS))
    return [
        Stretch(first, min(first + width, groups), min(first + min(width, GROUPS_PER_BUCKET), groups))
        for first in range(0, groups, width)
    ]


GROUP_FIELDS = {
    "tid": 1,
    "seq": 1,
    "source": 1,
    "status": 1,
    "scores": 1,
    "outcome": 1,
    "at_version": 1,
    "settled_at": 1,
}


def list_query(policy: str, split: str, before: int, where: Mapping[str, Any]) -> Query:
    """The newest groups below a `seq`; a filter looks at `LOOKED_AT` of them at most."""
    return Query(
        "groups, the newest first",
        "tasks",
        {"policy": policy, "split": split, "seq": {"$gte": max(0, before - LOOKED_AT), "$lt": before}, **where},
        GROUP_FIELDS,
        [("seq", -1)],
        MOST_LISTED,
    )


async def newest_seq(database: Database, policy: str, split: str) -> int:
    """One above the newest opened task's."""
    opened = {"policy": policy, "split": split, "status": {"$in": [*PLAYED, TaskStatus.RUNNING.value]}}
    rows = await Query("", "tasks", opened, {"seq": 1}, [("seq", -1)], 1).run(database)
    return int(rows[0]["seq"]) + 1 if rows else 0


# ---------------------------------------------------------------------- one group


async def neighbours(database: Database, policy: str, split: str, seq: int) -> tuple[str | None, str | None]:
    """The groups before and after in the order of the tasks; None: there is none."""
    of = {"policy": policy, "split": split}
    earlier = Query("", "tasks", {**of, "seq": {"$lt": seq}}, {"_id": 1}, [("seq", -1)], 1)
    later = Query("", "tasks", {**of, "seq": {"$gt": seq}}, {"_id": 1}, [("seq", 1)], 1)
    rows = [await query.run(database) for query in (earlier, later)]
    previous, following = (str(one[0]["_id"]) if one else None for one in rows)
    return previous, following


def task_query(gid: str) -> Query:
    return Query("the task with its slots", "tasks", {"_id": gid}, limit=1)


def attempts_query(gid: str) -> Query:
    return Query(
        "every attempt at the task", "records", {"task": gid}, None, [("traj_id", 1), ("attempt", 1)], MOST_ATTEMPTS
    )


def data_query(gid: str) -> Query:
    return Query("their training data", "record_data", {"task": gid}, limit=MOST_ATTEMPTS)


def turns_query(records: Iterable[str]) -> Query:
    """Short forms of the turns: the reply's first characters and its length, the calls without their results."""
    reply = {"$ifNull": ["$response.text", ""]}
    calls = {"$map": {"input": {"$ifNull": ["$tool_calls", []]}, "in": _CALL}}
    fields = {
        **dict.fromkeys(("record", "turn", "thread", "policy", "status", "advantage", "score", "weight_versions"), 1),
        **dict.fromkeys(("images.sha256", "images.count"), 1),
        **dict.fromkeys(("created_at", "finished_at", "error"), 1),
        "text": {"$substrCP": [reply, 0, COMPARED_CHARS]},
        "chars": {"$strLenCP": reply},
        "calls": calls,
        "tokens": {"$divide": [{"$binarySize": {"$ifNull": ["$response.output_ids", ""]}}, 4]},
    }
    return Query(
        "their turns, side by side",
        "dispatched_sampling_tasks",
        {"record": {"$in": list(records)}},
        fields,
        [("record", 1), ("turn", 1)],
        MOST_TURNS,
    )


_CALL = {
    "name": "$$this.name",
    "arguments": "$$this.arguments",
    "is_error": "$$this.is_error",
    "s": "$$this.duration_s",
}
