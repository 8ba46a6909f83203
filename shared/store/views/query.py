"""A question to one collection, which can be asked here and copied into Compass or mongosh: what a page shows and what its
query shows are the same documents.

Every question is bounded: by a limit or by ids, and by `MAX_TIME_MS` on the server.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

Document = dict[str, Any]
Database = AsyncDatabase[Document]

MAX_TIME_MS = 5_000  # per question, on the server: a page that needs more says so
MOST_ROWS = 5_000  # of any question
_READ: ContextVar[dict[str, list[Any]]] = ContextVar("read")


@dataclass(frozen=True)
class Query:
    """`pipeline` in place of `where`, `fields` and `sort`: an aggregation. `title` says what it shows."""

    title: str
    collection: str
    where: Document = field(default_factory=dict)
    fields: Document | None = None
    sort: Sequence[tuple[str, int]] = ()
    limit: int = MOST_ROWS
    skip: int = 0
    pipeline: Sequence[Document] | None = None

    async def run(self, database: Database) -> list[Document]:
        documents = database[self.collection]
        if self.pipeline is not None:
            cursor = await documents.aggregate(list(self.pipeline), maxTimeMS=MAX_TIME_MS)
            return await cursor.to_list(MOST_ROWS)
        selected = documents.find(self.where, self.fields, max_time_ms=MAX_TIME_MS).skip(self.skip).limit(self.limit)
        rows = await (selected.sort(list(self.sort)) if self.sort else selected).to_list()
        note_read(self.collection, rows)
        return rows

    @property
    def compass(self) -> str:
        """For the *Filter* field of the *Documents* tab, or the text of the *Aggregations* tab."""
        return shell_text(self.where if self.pipeline is None else list(self.pipeline))

    @property
    def compass_place(self) -> str:
        tab = "Documents, Filter" if self.pipeline is None else "Aggregations, as text"
        return f"collection {self.collection}, tab {tab}"

    @property
    def mongosh(self) -> str:
        target = f"db.getCollection({json.dumps(self.collection)})"
        if self.pipeline is not None:
            return f"{target}.aggregate({shell_text(list(self.pipeline))})"
        arguments = shell_text(self.where) + (f", {shell_text(self.fields)}" if self.fields else "")
        ordered = f".sort({shell_text(dict(self.sort))})" if self.sort else ""
        skipped = f".skip({self.skip})" if self.skip else ""
        return f"{target}.find({arguments}){ordered}{skipped}.limit({self.limit})"

    def to_json(self) -> Document:
        return {"title": self.title, "place": self.compass_place, "compass": self.compass, "mongosh": self.mongosh}


def note_what_is_read() -> None:
    """From here on, in this task (one request)."""
    _READ.set({})


def note_read(collection: str, documents: Iterable[Document]) -> None:
    """For a page that asks without `Query`."""
    _READ.get({}).setdefault(collection, []).extend(document["_id"] for document in documents)


def was_read() -> dict[str, list[Any]]:
    """{collection: ids of what queries found}."""
    return {collection: list(names) for collection, names in _READ.get({}).items()}


def shell_text(value: Any) -> str:
    """A value as mongosh and Compass read it: JSON, with ISODate for times. Raises TypeError for other types."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {shell_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shell_text, value)) + "]"
    if isinstance(value, datetime):
        naive = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return f'ISODate("{naive.isoformat(timespec="milliseconds")}Z")'
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if value is None or isinstance(value, bool | int | float | str):
        # Unpaired surrogates cannot be copied; U+2028 ends a line in JavaScript: both are escaped.
        return json.dumps(value, ensure_ascii=True)
    raise TypeError(f"{type(value).__name__} has no text in mongosh")
