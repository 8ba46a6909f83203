"""Verbs on optimizer steps: the data that each one used and its metrics, as logged by the trainer in addition to the marks.

Entries are never changed or deleted: the trainer's starts determine which of them a resume has undone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import TrainedStep
from shared.store.indexes import add_index
from shared.store.pipelines import insert_once, literal
from shared.store.retry import survives_outages

Document = dict[str, Any]
MOST_METRICS = 2_000  # per step; a mixture has several per source


@survives_outages
class StepVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._steps = database["trained_steps"]

    async def ensure_indexes(self) -> None:
        await add_index(self._steps, [("policy", 1), ("step", 1)], name="step")
        await add_index(self._steps, [("created_at", 1), ("_id", 1)], name="taken")

    async def add(self, step: TrainedStep) -> None:
        """Call after the commit. Idempotent."""
        await self._steps.update_one({"_id": step.id}, insert_once(step.to_mongo()), upsert=True)

    async def note_metrics(self, step_id: str, metrics: Mapping[str, float]) -> None:
        """Store the logged metrics of an added step, once. Keeps the first `MOST_METRICS` by name."""
        names = sorted(metrics)[:MOST_METRICS]
        stored = {name: float(metrics[name]) if math.isfinite(metrics[name]) else None for name in names}
        await self._steps.update_one(
            {"_id": step_id, "metrics": {"$in": [None, {}]}}, [{"$set": {"metrics": literal(stored)}}]
        )

    async def metrics_of(self, policy: str, step: int, starts: Sequence[int]) -> dict[str, float | None]:
        """Metrics of a step that is part of the weights; {} if it is not, or has none."""
        cursor = self._steps.find({"policy": policy, "step": step})
        steps = [TrainedStep.from_mongo(document) async for document in cursor]
        return next((s.metrics for s in steps if s.survives(starts)), {})

    async def newest_metrics(self, policy: str, starts: Sequence[int], most: int) -> list[dict[str, float | None]]:
        """Metrics of the newest steps that are part of the weights, at most `most`, the newest first."""
        cursor = self._steps.find({"policy": policy}).sort([("step", -1), ("_id", -1)]).batch_size(most)
        found: list[dict[str, float | None]] = []
        async for document in cursor:
            step = TrainedStep.from_mongo(document)
            if step.metrics and step.survives(starts):
                found.append(step.metrics)
            if len(found) == most:
                break
        await cursor.close()
        return found

    async def surviving(self, policy: str, starts: Sequence[int]) -> list[TrainedStep]:
        """Steps that are part of the weights, in order. `starts`: the initial step of each trainer generation."""
        cursor = self._steps.find({"policy": policy}, {"metrics": 0}).sort([("step", 1), ("_id", 1)])
        steps = [TrainedStep.from_mongo(document) async for document in cursor]
        return [step for step in steps if step.survives(starts)]
