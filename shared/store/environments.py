"""Verbs on services that play environments' sessions."""

from typing import Any
from urllib.parse import urlsplit

from pymongo import ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import EnvironmentService
from shared.names import LOOPBACK_HOSTS
from shared.store.liveness import is_live
from shared.store.malformed import readable
from shared.store.pipelines import NOW, literal, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]


@survives_outages
class EnvironmentVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._services: AsyncCollection[Document] = database["environment_services"]

    async def heartbeat(self, service: EnvironmentService) -> bool:
        """Register a service, or update its heartbeat and load. False: its address is of one machine alone, as 127.0.0.1 is, and
        another machine's living service has registered it."""
        values = service.to_mongo()
        for name in ("_id", "heartbeat"):
            del values[name]
        is_anothers: Document | bool = False
        if urlsplit(service.url).hostname in LOOPBACK_HOSTS:
            is_anothers = {"$and": [{"$ne": ["$host", literal(service.host)]}, is_live()]}
        changed = {"$mergeObjects": ["$$ROOT", {**literals(values), "heartbeat": NOW}]}
        stored = await self._services.find_one_and_update(
            {"_id": service.id},
            [{"$replaceWith": {"$cond": [is_anothers, "$$ROOT", changed]}}],
            {"host": 1},
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        assert stored is not None, "inserted, or there"
        return bool(stored["host"] == service.host)

    async def remove(self, url: str, host: str) -> None:
        """It takes no more sessions. `host`: that of the service."""
        await self._services.delete_one({"_id": url, "host": host})

    async def live(self) -> list[EnvironmentService]:
        return await readable(EnvironmentService, self._services.find({"$expr": is_live()}).sort([("_id", 1)]))

    async def all(self) -> list[EnvironmentService]:
        return await readable(EnvironmentService, self._services.find().sort([("_id", 1)]))
