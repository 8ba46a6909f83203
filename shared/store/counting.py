"""Documents counted by the first fields of an index. The index alone is read, some four million keys a second."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection

from shared.store.indexes import with_index

Document = dict[str, Any]


async def prefixes(
    collection: AsyncCollection[Document], fields: Sequence[str], where: Mapping[str, Any]
) -> list[Document]:
    """Every combination of values that `fields` have, the first fields of an index. `where`: values of the first of them."""
    found: list[Document] = [{}]
    for field in fields:
        found = [
            {**one, field: value}
            for one in found
            for value in ([where[field]] if field in where else await collection.distinct(field, one))
        ]
    return found


async def count_by(
    collection: AsyncCollection[Document],
    index: str,
    fields: Sequence[str],
    where: Mapping[str, Any],
    most: int | None = None,
) -> list[tuple[Document, int]]:
    """The combinations of `prefixes`, each with its number of documents. `fields`: the first ones of `index`. `most`: of a
    combination that has more, one more is counted; None: all are."""
    limit: Document = {} if most is None else {"limit": most + 1}

    async def count(one: Document) -> tuple[Document, int]:
        return one, await with_index(index, lambda by: collection.count_documents(one, **limit, **by))

    return await asyncio.gather(*map(count, await prefixes(collection, fields, where)))
