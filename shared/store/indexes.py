"""Indexes that only make queries fast: one that cannot be made is told, and the process starts all the same.

A unique index guarantees something, so the verbs that rely on it make it themselves, and any error there ends the process.
"""

import logging
from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

log = logging.getLogger(__name__)

# A collection has 64 at most; a person's own one has the same fields under another name, or the same name.
HINDERED = {
    67: "the collection has as many indexes as MongoDB allows",
    85: "another has its fields",
    86: "another has its name",
}


async def add_index(
    collection: AsyncCollection[dict[str, Any]], fields: Sequence[tuple[str, int]], *, name: str, **options: Any
) -> None:
    """Make the index unless it is there."""
    try:
        await collection.create_index(fields, name=name, **options)
    except OperationFailure as exc:
        if exc.code not in HINDERED:
            raise
        log.warning("index %r of %s is not made: %s", name, collection.full_name, HINDERED[exc.code])
