"""Verbs on the services' settings. A record names its worker, and a worker's settings are stored here."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import StoredSettings
from shared.store.indexes import add_index
from shared.store.malformed import readable
from shared.store.pipelines import NOW, literal, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]
MOST_WORKERS = 1_000  # per document; beyond it, the most recent ones


@survives_outages
class SettingsVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._settings = database["settings"]

    async def ensure_indexes(self) -> None:
        await add_index(self._settings, [("workers", 1)], name="worker")

    async def keep(self, kind: str, values: Mapping[str, Any], worker: str) -> str:
        """Store that `worker` runs with `values`, resolved and without secrets. Returns the document's id. Idempotent."""
        text = json.dumps(values, sort_keys=True, default=str)
        identity = f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        known = {"$ifNull": ["$workers", []]}
        name = literal(worker)
        workers = {
            "$cond": [
                {"$in": [name, known]},
                known,
                {"$slice": [{"$concatArrays": [known, [name]]}, -MOST_WORKERS]},
            ]
        }
        new = {**literals({"kind": kind, "values": dict(values)}), "created_at": NOW}
        await self._settings.update_one(
            {"_id": identity},
            [{"$replaceWith": {"$mergeObjects": [new, "$$ROOT", {"workers": workers}]}}],
            upsert=True,
        )
        return identity

    async def of_worker(self, worker: str) -> list[StoredSettings]:
        """Its settings, the newest first; several if an earlier process had the same id."""
        return await readable(
            StoredSettings, self._settings.find({"workers": worker}).sort([("created_at", -1), ("_id", 1)])
        )
