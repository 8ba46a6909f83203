"""Verbs on the tool lists that requests name: written before the first such request, and never changed."""

from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.tool_schemas import ToolSchemas
from shared.store.malformed import readable
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages

Document = dict[str, Any]


@survives_outages
class ToolSchemaVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._schemas = database[ToolSchemas.collection]

    async def keep(self, schemas: ToolSchemas) -> None:
        """Insert a list; an existing one is unchanged."""
        await self._schemas.update_one({"_id": schemas.id}, insert_once(schemas.to_mongo()), upsert=True)

    async def get_many(self, hashes: Sequence[str]) -> dict[str, ToolSchemas]:
        if not hashes:  # an episode without tools
            return {}
        stored = await readable(ToolSchemas, self._schemas.find({"_id": {"$in": list(hashes)}}))
        return {schemas.id: schemas for schemas in stored}
