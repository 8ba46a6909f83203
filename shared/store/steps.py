"""Verbs on what optimizer steps were computed from, and what came out: the trainer's own account, besides the marks on the data.

Nothing is ever changed or deleted: which of them a resume took back follows from the starts of the trainer.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import TrainedStep
from shared.store.pipelines import insert_once, literal
from shared.store.retry import survives_outages

Document = dict[str, Any]
MOST_METRICS = 2_000  # of a step: with several for each source of a mixture they are as many as its sources


@survives_outages
class StepVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._steps = database["trained_steps"]

    async def ensure_indexes(self) -> None:
        await self._steps.create_index([("policy", 1), ("step", 1)], name="step")

    async def add(self, step: TrainedStep) -> None:
        """After the commit. Repeated, it changes nothing."""
        await self._steps.update_one({"_id": step.id}, insert_once(step.to_mongo()), upsert=True)

    async def note_metrics(self, step_id: str, metrics: Mapping[str, float]) -> None:
        """What was logged of a step that was added; once said, it stays. Of too many the first by name."""
        names = sorted(metrics)[:MOST_METRICS]
        stored = {name: float(metrics[name]) if math.isfinite(metrics[name]) else None for name in names}
        await self._steps.update_one(
            {"_id": step_id, "metrics": {"$in": [None, {}]}}, [{"$set": {"metrics": literal(stored)}}]
        )

    async def metrics_of(self, policy: str, step: int, starts: Sequence[int]) -> dict[str, float | None]:
        """Those of a step that is part of the weights; {}: it is not, or none were noted."""
        found = self._steps.find({"policy": policy, "step": step})
        steps = [TrainedStep.from_mongo(document) async for document in found]
        return next((s.metrics for s in steps if s.survives(starts)), {})

    async def surviving(self, policy: str, starts: Sequence[int]) -> list[TrainedStep]:
        """Those that are part of the weights, in order. `starts`: the step that each start of the trainer began from."""
        found = self._steps.find({"policy": policy}, {"metrics": 0}).sort([("step", 1), ("_id", 1)])
        steps = [TrainedStep.from_mongo(document) async for document in found]
        return [step for step in steps if step.survives(starts)]
