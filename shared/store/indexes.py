"""Indexes that only make queries fast: one that cannot be made is told, and the process starts all the same.

A unique index guarantees something, so the verbs that rely on it make it themselves, and any error there ends the process.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pymongo
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import NetworkTimeout, OperationFailure

log = logging.getLogger(__name__)
Collection = AsyncCollection[dict[str, Any]]
Fields = Sequence[tuple[str, int]]
Options = dict[str, Any]  # of a query
Answer = TypeVar("Answer")

LONGEST_BUILD_S = 3600.0  # of a run that has tens of millions of documents without this index
# A collection has 64 at most; a person's own one has the same fields under another name, or the same name.
HINDERED = {
    67: "the collection has as many indexes as MongoDB allows",
    85: "another has its fields",
    86: "another has its name",
}
NO_SUCH_INDEX = (
    "hint provided does not correspond to an existing index"  # under code 2, BadValue, which has other meanings
)


async def build_index(collection: Collection, fields: Fields, *, name: str, **options: Any) -> None:
    """Make the index unless it is there. A build may take longer than the client lets any other command take."""
    try:
        await collection.create_index(fields, name=name, **options)
    except NetworkTimeout:
        number = await collection.estimated_document_count()  # raises if it is the server that does not answer
        log.warning("index %r of %s is being built: %s documents, wait", name, collection.full_name, f"{number:,}")
        with pymongo.timeout(LONGEST_BUILD_S):
            await collection.create_index(fields, name=name, **options)


async def add_index(collection: Collection, fields: Fields, *, name: str, **options: Any) -> None:
    """Make the index unless it is there or cannot be made."""
    try:
        await build_index(collection, fields, name=name, **options)
    except OperationFailure as exc:
        if exc.code not in HINDERED:
            raise
        log.warning("index %r of %s is not made: %s", name, collection.full_name, HINDERED[exc.code])


async def with_index(name: str, ask: Callable[[Options], Awaitable[Answer]]) -> Answer:
    """What `ask(options)` returns: `options` name the index to the server, or are empty where the collection lacks it.

    It lacks one that could not be made, or that a copy of the run was restored without: the answer is the same, read more slowly.
    """
    try:
        return await ask({"hint": name})
    except OperationFailure as exc:
        if NO_SUCH_INDEX not in str(exc):
            raise
    return await ask({})
