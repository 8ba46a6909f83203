"""Verbs on services that play environments' sessions."""

from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import EnvironmentService
from shared.store.liveness import heard_of
from shared.store.malformed import readable
from shared.store.pipelines import NOW, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]


@survives_outages
class EnvironmentVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._services: AsyncCollection[Document] = database["environment_services"]

    async def heartbeat(self, service: EnvironmentService) -> None:
        """Register a service, or update its heartbeat and load."""
        values = service.to_mongo()
        for name in ("_id", "heartbeat"):
            del values[name]
        await self._services.update_one(
            {"_id": service.id}, [{"$set": {**literals(values), "heartbeat": NOW}}], upsert=True
        )

    async def remove(self, url: str) -> None:
        """It takes no more sessions."""
        await self._services.delete_one({"_id": url})

    async def live(self) -> list[EnvironmentService]:
        return await readable(EnvironmentService, self._services.find({"$expr": heard_of()}).sort([("_id", 1)]))

    async def all(self) -> list[EnvironmentService]:
        return await readable(EnvironmentService, self._services.find().sort([("_id", 1)]))
