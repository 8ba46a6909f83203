"""What the newest episodes called, and what broke: by tool, by parse error, by the episodes' ends."""

from shared.documents.states import DispatchStatus
from shared.store.views.query import Database, Document, Query
from shared.store.views.rollouts import ENDED, LOOKED_THROUGH

BROKEN = [
    status.value
    for status in (
        DispatchStatus.FAILED,
        DispatchStatus.TOOL_FAILED,
        DispatchStatus.FORMAT_ERROR,
        DispatchStatus.REPEAT_ERROR,
    )
]
ERROR_CHARS = 160


def episodes_query(split: str) -> Query:
    return Query(
        "the newest episodes",
        "records",
        {"split": split, "status": {"$in": ENDED}},
        {"termination": 1, "num_turns": 1, "finished_at": 1},
        [("finished_at", -1)],
        LOOKED_THROUGH,
    )


def calls_query(records: list[str]) -> Query:
    error: Document = {"$cond": ["$tool_calls.is_error", 1, 0]}
    group = {
        "_id": "$tool_calls.name",
        "calls": {"$sum": 1},
        "errors": {"$sum": error},
        "mean_s": {"$avg": "$tool_calls.duration_s"},
        "max_s": {"$max": "$tool_calls.duration_s"},
        "retries": {"$sum": {"$ifNull": ["$tool_calls.retries", 0]}},
        "cut": {"$sum": {"$cond": [{"$gt": [{"$ifNull": ["$tool_calls.cut_chars", 0]}, 0]}, 1, 0]}},
        "episodes": {"$addToSet": "$record"},
        "example": {"$max": {"$cond": ["$tool_calls.is_error", "$_id", None]}},
    }
    return Query(
        "their tool calls, by tool",
        "dispatched_sampling_tasks",
        pipeline=[
            {"$match": {"record": {"$in": records}, "tool_calls.0": {"$exists": True}}},
            {"$unwind": "$tool_calls"},
            {"$group": group},
            {"$set": {"episodes": {"$size": "$episodes"}}},
            {"$sort": {"errors": -1, "calls": -1}},
        ],
    )


def broken_query(records: list[str]) -> Query:
    """Turns that ended badly, by status and the beginning of their error."""
    error = {"$substrCP": [{"$ifNull": ["$error", ""]}, 0, ERROR_CHARS]}
    group = {
        "_id": {"status": "$status", "error": error},
        "turns": {"$sum": 1},
        "example": {"$first": "$record"},
        "turn": {"$first": "$turn"},
    }
    return Query(
        "their turns that broke, by error",
        "dispatched_sampling_tasks",
        pipeline=[
            {"$match": {"record": {"$in": records}, "status": {"$in": BROKEN}}},
            {"$group": group},
            {"$sort": {"turns": -1}},
            {"$limit": 50},
        ],
    )


async def what_broke(
    database: Database, split: str
) -> tuple[list[Document], list[Document], list[Document], list[Query]]:
    """(episodes, calls by tool, broken turns by error, what was asked)."""
    listing = episodes_query(split)
    episodes = await listing.run(database)
    names = [document["_id"] for document in episodes]
    calls, broken = calls_query(names), broken_query(names)
    return episodes, await calls.run(database), await broken.run(database), [listing, calls, broken]
