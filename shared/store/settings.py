"""Verbs on the services' settings. A record names its worker, and a worker's settings are stored here."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import Run, StoredSettings
from shared.store.indexes import add_index
from shared.store.malformed import readable
from shared.store.pipelines import NOW, literal, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]
MOST_WORKERS = 1_000  # per document; beyond it, the most recent ones


def trainer_kind(policy: str) -> str:
    return f"trainer-{policy}"


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

    async def last(self, run: Run | None) -> dict[str, dict[str, Any]]:
        """{kind of service: the settings of its last start}, as the run's document says; a kind without any is left out."""
        if run is None or not run.settings:
            return {}
        cursor = self._settings.find({"_id": {"$in": list(run.settings.values())}})
        by_id = {one.id: one.values for one in await readable(StoredSettings, cursor)}
        return {kind: by_id[identity] for kind, identity in run.settings.items() if identity in by_id}

    async def of_trainer(self, run: Run | None, policy: str) -> dict[str, Any]:
        """Of its last start; {}: there was none."""
        kind = trainer_kind(policy)
        return (await self.last(run)).get(kind, {})

    async def of_worker(self, worker: str) -> list[StoredSettings]:
        """Its settings, the newest first; several if an earlier process had the same id."""
        return await readable(
            StoredSettings, self._settings.find({"workers": worker}).sort([("created_at", -1), ("_id", 1)])
        )
