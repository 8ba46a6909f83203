"""Verbs on what optimizer steps were computed from: the trainer's own account, beside the marks on the data.

Nothing is ever changed or deleted: which of them a resume took back follows from the starts of the trainer.
"""

from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.run_documents import TrainedStep
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages

Document = dict[str, Any]


@survives_outages
class StepVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._steps = database["trained_steps"]

    async def ensure_indexes(self) -> None:
        await self._steps.create_index([("policy", 1), ("step", 1)], name="step")

    async def add(self, step: TrainedStep) -> None:
        """After the commit. Repeated, it changes nothing."""
        await self._steps.update_one({"_id": step.id}, insert_once(step.to_mongo()), upsert=True)

    async def surviving(self, policy: str, starts: Sequence[int]) -> list[TrainedStep]:
        """Those that are part of the weights, in order. `starts`: the step that each start of the trainer began from."""
        found = self._steps.find({"policy": policy}).sort([("step", 1), ("_id", 1)])
        steps = [TrainedStep.from_mongo(document) async for document in found]
        return [step for step in steps if step.survives(starts)]
