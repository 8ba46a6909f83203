"""Verbs on routed experts: written before the request that names them is answered, and never changed."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pymongo import UpdateOne
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.routed_experts import ExpertChunk, Experts, PackedExperts, RoutedExperts, unpack_experts
from shared.errors import DataError
from shared.store.pipelines import insert_once
from shared.store.retry import repeated, survives_outages

if TYPE_CHECKING:
    from shared.store import Store

Document = dict[str, Any]
OF_REQUESTS = "dispatched_sampling_tasks"


@survives_outages
class RoutedExpertVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._chunks = database[ExpertChunk.collection]

    async def keep(self, packed: PackedExperts) -> None:
        """Insert its chunks that are not there, one a command. Idempotent: the id is the digest of the bytes."""
        for chunk in packed.documents():
            values = chunk.to_mongo()
            await self._chunks.bulk_write([UpdateOne({"_id": values["_id"]}, insert_once(values), upsert=True)])

    async def read(self, described: Sequence[RoutedExperts]) -> dict[str, Experts]:
        """{digest: the array}. Raises DataError for bytes that are missing or others."""
        arrays = {}
        for one in described:
            if one.sha256 not in arrays:
                arrays[one.sha256] = await self._read(one)
        return arrays

    async def _read(self, described: RoutedExperts) -> Experts:
        parts = []
        for name in described.chunks:  # one by one: a command's reply has 16 MB at most
            chunk = await self._chunks.find_one({"_id": name})
            if chunk is None:
                raise DataError(
                    f"routed experts {described.sha256[:12]}: chunk {name} is missing, but a request names it"
                )
            parts.append(ExpertChunk.from_mongo(chunk).data)
        try:
            return await asyncio.to_thread(unpack_experts, described, b"".join(parts))
        except ValueError as exc:
            raise DataError(str(exc)) from exc


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
