"""Verbs on routed experts: written before the request that names them is answered, and never changed."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pymongo import UpdateOne
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.routed_experts import ExpertChunk, PackedExperts, RoutedExperts, unpack_experts
from shared.errors import DataError
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages

if TYPE_CHECKING:
    from shared.documents.expert_array import Experts

Document = dict[str, Any]


@survives_outages
class RoutedExpertVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._chunks = database[ExpertChunk.collection]

    async def keep(self, packed: PackedExperts) -> None:
        """Insert its chunks that are not there, one a command. Idempotent: the id is the digest of the bytes."""
        for chunk in packed.documents():
            values = chunk.to_mongo()
            await self._chunks.bulk_write([UpdateOne({"_id": values["_id"]}, insert_once(values), upsert=True)])

    async def read(self, described: Sequence[RoutedExperts]) -> "dict[str, Experts]":
        """{digest: the array}. Raises DataError for bytes that are missing or others."""
        arrays = {}
        for one in described:
            if one.sha256 not in arrays:
                arrays[one.sha256] = await self._read(one)
        return arrays

    async def _read(self, described: RoutedExperts) -> "Experts":
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
