"""Rollouts: the search by filters, and the documents of one episode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.documents.states import RecordStatus
from shared.names import EVAL_SPLIT, FORK_SPLIT, TRAIN_SPLIT
from shared.store.views.query import Database, Document, Query

MOST_FOUND = 50  # on one page
MOST_PAGES = 40
MOST_STEPS = 100  # that trained one record, counting those that a resume undid
LOOKED_THROUGH = 1_000  # episodes whose turns a search by tool or text reads
ENDED = [status.value for status in RecordStatus if status is not RecordStatus.RUNNING]
RECORD_FIELDS = dict.fromkeys(
    (
        *("task", "traj_id", "attempt", "source", "split", "policy", "status", "score", "termination", "num_turns"),
        *(
            "num_tokens",
            "answer",
            "advantage",
            "reason",
            "error",
            "last_trained_step",
            "policy_versions",
            "finished_at",
        ),
        *("created_at", "worker"),
    ),
    1,
)


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """What a search asks for. `tool`, `tool_error`, `text` and `image` are looked for in the turns of the newest
    `LOOKED_THROUGH` episodes that fit the rest."""

    split: str | None = None
    status: str | None = None
    source: str | None = None
    termination: str | None = None
    tid: str | None = None
    worker: str | None = None
    step: int | None = None
    version: int | None = None
    min_score: float | None = None
    max_score: float | None = None
    tool: str | None = None
    tool_error: bool = False
    text: str | None = None
    image: str | None = None  # digest of an image that a turn's prompt added
    note: str | None = None  # in a note on the episode; `*`: any note

    @property
    def reads_turns(self) -> bool:
        return bool(self.tool or self.tool_error or self.text or self.image)

    def where(self) -> Document:
        """On `records`. Names `split` and `status` always: the index "recent" begins with them."""
        conditions: Document = {
            "split": self.split or {"$in": [TRAIN_SPLIT, EVAL_SPLIT]},
            "status": self.status or {"$in": ENDED},
        }
        for name in ("source", "termination", "tid", "worker"):
            value = getattr(self, name)
            if value is not None:
                conditions[name] = value
        if self.step is not None:
            conditions["last_trained_step"] = self.step
        if self.version is not None:
            conditions["policy_versions"] = self.version
        bounds = {"$gte": self.min_score, "$lte": self.max_score}
        given = {op: value for op, value in bounds.items() if value is not None}
        if given:
            conditions["score"] = given
        return conditions

    def in_turns(self, records: Sequence[str]) -> Document:
        """On `dispatched_sampling_tasks`."""
        conditions: Document = {"record": {"$in": list(records)}}
        call: Document = ({"name": self.tool} if self.tool else {}) | ({"is_error": True} if self.tool_error else {})
        if call:
            conditions["tool_calls"] = {"$elemMatch": call}
        if self.text:
            whole = {"$regex": _literally(self.text), "$options": "i"}
            names = ("response.text", "tool_calls.result", "messages.content", "messages.content.text")
            conditions["$or"] = [{name: whole} for name in names]
        if self.image:
            conditions["images.sha256"] = self.image
        return conditions


def _literally(text: str) -> str:
    return "".join(c if c.isalnum() else f"\\{c}" if c.isascii() and not c.isspace() else c for c in text)


async def search(
    database: Database, chosen: RolloutFilter, page: int, limit: int = MOST_FOUND, *, noted: Sequence[str] | None = None
) -> tuple[list[Document], list[Query]]:
    """Records, the newest first, one more than `limit` if there are more; and what was asked. `noted`: only of these."""
    records = Query(
        "the episodes of this search",
        "records",
        chosen.where() | ({} if noted is None else {"_id": {"$in": list(noted)}}),
        RECORD_FIELDS,
        [("finished_at", -1)],
        LOOKED_THROUGH if chosen.reads_turns else limit + 1,
        0 if chosen.reads_turns else page * limit,
    )
    candidates = [{**dict.fromkeys(RECORD_FIELDS), **document} for document in await records.run(database)]
    if not chosen.reads_turns:
        return candidates, [records]
    turns = Query(
        "turns of these episodes with the tool, the error, the text or the image",
        "dispatched_sampling_tasks",
        chosen.in_turns([document["_id"] for document in candidates]),
        {"record": 1, "turn": 1, "images.sha256": 1, "images.count": 1},
        limit=LOOKED_THROUGH,
    )
    named: Mapping[str, Document] = {d["record"]: d for d in reversed(await turns.run(database))}
    matching = [
        {**document, "turn": named[document["_id"]]["turn"], "images": named[document["_id"]].get("images", [])}
        for document in candidates
        if document["_id"] in named
    ]
    return matching[page * limit : (page + 1) * limit + 1], [records, turns]


def record_queries(record: str, task: str) -> list[Query]:
    """The documents of one episode."""
    return [
        Query("the episode", "records", {"_id": record}, limit=1),
        Query("its turns", "dispatched_sampling_tasks", {"record": record}, sort=[("turn", 1)]),
        Query("its training data", "record_data", {"record": record}),
        Query("its task", "tasks", {"_id": task}, limit=1),
    ]


def forks_query(policy: str, dispatches: Sequence[str]) -> Query:
    """Forks are named by the request that they go on from."""
    where = {"policy": policy, "split": FORK_SPLIT, "tid": {"$in": list(dispatches)}}
    fields = {"tid": 1, "epoch": 1, "status": 1, "scores": 1, "num_generations": 1}
    return Query("forks of its turns (tandem fork)", "tasks", where, fields, [("seq", 1)], 100)


def logprobs_query(data: str, turn: int) -> Query:
    """What the trainer computed for a turn's tokens, a document for each step that trained them. Asks the index on `_id`."""
    return Query(
        "what the trainer computed for these tokens",
        "trainer_logprobs",
        {"_id": {"$gte": f"{data}:", "$lt": f"{data};"}, "data": data},
        {"step": 1, "trainer_generation": 1, "turns": {"$elemMatch": {"turn": turn}}},
        [("_id", 1)],
        MOST_STEPS,
    )


def images_query(digests: Sequence[str]) -> Query:
    """Which of the images are stored. Reads the index on `_id` alone: a document has up to 8 MB."""
    return Query("its images, without their bytes", "images", {"_id": {"$in": list(digests)}}, {"_id": 1})


def turn_query(dispatch: str) -> Query:
    return Query("this turn", "dispatched_sampling_tasks", {"_id": dispatch}, limit=1)


async def siblings(database: Database, task: str) -> list[Document]:
    """Attempts at the same task, in order."""
    fields: dict[str, Any] = {"traj_id": 1, "attempt": 1, "score": 1, "status": 1}
    query = Query("", "records", {"task": task}, fields, [("traj_id", 1), ("attempt", 1)], 512)
    return await query.run(database)
