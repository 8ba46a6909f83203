"""Documents that do not fit their models: a key typed in Compass, a value of another type, a field that is gone.

One such document never ends a process. What is many is set aside one by one, by the verb that meets it: a task is abandoned, a
record is left out of its group. What describes the present (versions, engines, workers) is passed over until it is mended.
Each is told once in the log, with its collection, `_id` and field; `tandem status` lists them.
"""

import logging
from collections.abc import AsyncIterable
from functools import cache
from typing import Any, TypeVar

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.base import Document as Model
from shared.documents.run import InferenceService, PolicyVersion, Run, Worker
from shared.errors import MalformedDocument
from shared.store.pipelines import NOW, literal
from shared.store.retry import survives_outages

log = logging.getLogger(__name__)

Document = dict[str, Any]
M = TypeVar("M", bound=Model)
OF_THE_PRESENT: tuple[type[Model], ...] = (Run, PolicyVersion, InferenceService, Worker)


async def readable(model: type[M], found: AsyncIterable[Document]) -> list[M]:
    """Those that fit; the others are told."""
    return [read async for document in found if (read := read_or_tell(model, document)) is not None]


def read_or_tell(model: type[M], document: Document) -> M | None:
    try:
        return model.from_mongo(document)
    except MalformedDocument as exc:
        tell(str(exc))
        return None


@cache
def tell(problem: str) -> None:
    """Once in the life of the process: polls meet the same document again and again."""
    log.error("malformed document %s", problem)


@survives_outages
class MalformedVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database
        self._noted = database["malformed_documents"]

    async def note(self, exc: MalformedDocument) -> None:
        """It was set aside."""
        tell(str(exc))
        identity = f"{exc.collection} {exc.document_id}"
        await self._noted.update_one(
            {"_id": identity}, [{"$set": {"problem": literal(str(exc)), "seen_at": NOW}}], upsert=True
        )

    async def all(self) -> list[str]:
        """What was set aside, and what is passed over now."""
        problems = [str(noted["problem"]) async for noted in self._noted.find().sort([("seen_at", 1)])]
        for model in OF_THE_PRESENT:
            async for document in self._database[model.collection].find():
                try:
                    model.from_mongo(document)
                except MalformedDocument as exc:
                    problems.append(str(exc))
        return problems
