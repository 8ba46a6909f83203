"""Verbs on the trainer's log-probs of the tokens that it trained: written for people to read, never read by a service."""

from collections.abc import Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.trainer_logprobs import TrainerLogprobs
from shared.store.indexes import add_index
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages

Document = dict[str, Any]
WRITES_AT_ONCE = 100


@survives_outages
class TrainerLogprobVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._logprobs = database["trainer_logprobs"]

    async def ensure_indexes(self) -> None:
        await add_index(
            self._logprobs, [("policy", 1), ("step", 1), ("largest_difference", -1)], name="largest differences"
        )

    async def keep(self, documents: Sequence[TrainerLogprobs]) -> None:
        """Insert what is not there. Idempotent: the id names the step and the trainer's start."""
        for start in range(0, len(documents), WRITES_AT_ONCE):
            some = [document.to_mongo() for document in documents[start : start + WRITES_AT_ONCE]]
            writes = [UpdateOne({"_id": one["_id"]}, insert_once(one), upsert=True) for one in some]
            await self._logprobs.bulk_write(writes, ordered=False)
