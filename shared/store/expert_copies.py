"""Routed experts that requests name, taken along when these are copied to another run or a file."""

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.routed_experts import ExpertChunk, RoutedExperts
from shared.store.retry import repeated

if TYPE_CHECKING:
    from shared.store import Store

Document = dict[str, Any]
OF_REQUESTS = "dispatched_sampling_tasks"


def expert_chunks_of(documents: Iterable[tuple[str, Document]]) -> set[str]:
    """Ids of the chunks that the requests among (collection, document) name."""
    named = (document.get("routed_experts") for collection, document in documents if collection == OF_REQUESTS)
    return {name for one in named if one for name in RoutedExperts.from_mongo(one).chunks}


async def expert_documents(
    source: AsyncDatabase[Document], names: Iterable[str]
) -> AsyncIterator[tuple[str, Document]]:
    """(collection, document) of each chunk, one at a time. One that is missing is left out."""
    for name in sorted(set(names)):
        chunk = await _find(source, name)
        if chunk is not None:
            yield ExpertChunk.collection, chunk


async def copy_experts(source: "Store", target: "Store", names: Iterable[str]) -> None:
    """Insert the chunks that `target` lacks. No chunk is named: no query."""
    for name in sorted(set(names)):
        if await _find(target.database, name, fields={"_id": 1}) is None:
            async for _, chunk in expert_documents(source.database, [name]):
                await _insert(target.database, chunk)


@repeated
async def _find(database: AsyncDatabase[Document], name: str, fields: dict[str, int] | None = None) -> Document | None:
    return await database[ExpertChunk.collection].find_one({"_id": name}, fields)


@repeated
async def _insert(database: AsyncDatabase[Document], chunk: Document) -> None:
    await database[ExpertChunk.collection].update_one({"_id": chunk["_id"]}, {"$setOnInsert": chunk}, upsert=True)
