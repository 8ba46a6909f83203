"""Documents that do not fit their models: a key added in Compass, a value of another type, a missing field.

One such document never ends a process. The verb that reads it sets it aside: a task is abandoned, a record is excluded from
its group. Documents of the present state (versions, engines, workers) are ignored until they are repaired.
Each is logged once, with its collection, `_id` and field; `tandem status` lists them.
"""

import logging
from collections.abc import AsyncIterable
from functools import cache
from typing import Any, TypeVar

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.base import Document as Model
from shared.documents.run import EnvironmentService, InferenceService, PolicyVersion, Run, Worker
from shared.errors import MalformedDocument
from shared.store.pipelines import NOW, literal
from shared.store.retry import survives_outages

log = logging.getLogger(__name__)

Document = dict[str, Any]
M = TypeVar("M", bound=Model)
MOST_EXAMINED = 500  # a run has a version for every step
OF_THE_PRESENT: tuple[type[Model], ...] = (Run, PolicyVersion, InferenceService, EnvironmentService, Worker)


async def readable(model: type[M], cursor: AsyncIterable[Document]) -> list[M]:
    """Return the documents that fit; log the others."""
    documents = [read_or_log(model, document) async for document in cursor]
    return [document for document in documents if document is not None]


def read_or_log(model: type[M], document: Document) -> M | None:
    try:
        return model.from_mongo(document)
    except MalformedDocument as exc:
        log_once(str(exc))
        return None


@cache
def log_once(problem: str) -> None:
    """Log `problem` once per process: polling reads the same document repeatedly."""
    log.error("malformed document %s", problem)


@survives_outages
class MalformedVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database
        self._noted = database["malformed_documents"]

    async def note(self, exc: MalformedDocument) -> None:
        """Store that the document was set aside."""
        log_once(str(exc))
        identity = f"{exc.collection} {exc.document_id}"
        await self._noted.update_one(
            {"_id": identity}, [{"$set": {"problem": literal(str(exc)), "seen_at": NOW}}], upsert=True
        )

    async def all(self) -> list[str]:
        """The documents that were set aside, and those that are ignored now, of the newest `MOST_EXAMINED` of each kind."""
        problems = [str(noted["problem"]) async for noted in self._noted.find().sort([("seen_at", 1)])]
        for model in OF_THE_PRESENT:
            async for document in self._database[model.collection].find().sort("$natural", -1).limit(MOST_EXAMINED):
                try:
                    model.from_mongo(document)
                except MalformedDocument as exc:
                    problems.append(str(exc))
        return problems
