"""Which document a page could not be made of: after an error that no page expects, its documents are read again and checked.

A document that was written by hand, or by another program, may break what no model says: ids of 7 bytes, a metric that is a text.
The reader of the page gets its collection, its `_id`, what is wrong, and the query that finds it.
"""

from collections.abc import AsyncIterator

from shared.documents import DBRecordData, DispatchedSamplingTask, Record, Task
from shared.documents.base import Document as Model
from shared.documents.run import InferenceService, PolicyVersion, TrainedStep, Worker
from shared.documents.trainer_logprobs import TrainerLogprobs
from shared.errors import MalformedDocument, TandemError
from shared.store.views import groups, rollouts, steps
from shared.store.views.query import Database, Document, Query, was_read
from tandem.viewer.page_request import PageRequest

MODELS: dict[str, type[Model]] = {
    model.collection: model
    for model in (
        DBRecordData,
        DispatchedSamplingTask,
        InferenceService,
        PolicyVersion,
        Record,
        Task,
        TrainedStep,
        TrainerLogprobs,
        Worker,
    )
}
MOST_CHECKED = 5_000  # documents
CHECKED_AT_ONCE = 500


class UnreadableDocument(TandemError):
    """A page could not be made: status 500. `query`: finds the document; None: none of those that were read is wrong."""

    def __init__(self, message: str, query: Query | None) -> None:
        super().__init__(message)
        self.query = query


def of_malformed(exc: MalformedDocument) -> UnreadableDocument:
    return UnreadableDocument(f"a document does not fit its model: {exc}", _finds(exc.collection, exc.document_id))


async def unreadable(request: PageRequest, exc: Exception) -> UnreadableDocument:
    """What to say of `exc`, which a page's function raised."""
    reason = f"{type(exc).__name__}: {str(exc)[:300]}"
    async for collection, document in _read_again(request):
        problem = _problem(collection, document)
        if problem is not None:
            query = _finds(collection, document["_id"])
            return UnreadableDocument(f"{collection} {str(document['_id'])[:200]}: {problem} ({reason})", query)
    return UnreadableDocument(
        f"the page could not be made of its documents, though each fits its model: {reason}", None
    )


def _finds(collection: str, identity: object) -> Query:
    return Query("the document", collection, {"_id": identity}, limit=1)


async def _read_again(request: PageRequest) -> AsyncIterator[tuple[str, Document]]:
    """Those that the page asked for by name, then those that its queries found, whole."""
    database = request.store.database
    for query in await _named(request, database):
        for document in await query.run(database):
            yield query.collection, document
    budget = MOST_CHECKED
    for collection, names in was_read().items():
        for start in range(0, min(len(names), budget), CHECKED_AT_ONCE):
            where = {"_id": {"$in": names[start : start + CHECKED_AT_ONCE]}}
            for document in await Query("", collection, where).run(database):
                yield collection, document
        budget -= len(names)


async def _named(request: PageRequest, database: Database) -> list[Query]:
    named = request.request.path_params
    if "record_id" in named:
        record = request.id("record_id")
        rows = await Query("", "records", {"_id": record}, {"task": 1}, limit=1).run(database)
        return rollouts.record_queries(record, str(rows[0].get("task")) if rows else "")
    if "gid" in named:
        gid = request.id("gid")
        records = await Query("", "records", {"task": gid}, {"_id": 1}, limit=groups.MOST_ATTEMPTS).run(database)
        turns = Query("", "dispatched_sampling_tasks", {"record": {"$in": [one["_id"] for one in records]}})
        return [groups.task_query(gid), groups.attempts_query(gid), groups.data_query(gid), turns]
    if "step" in named and request.id("step").isdecimal():
        return [steps.step_query(request.id("policy"), int(request.id("step")))]
    return []


def _problem(collection: str, document: Document) -> str | None:
    model = MODELS.get(collection)
    if model is None:
        return None
    try:
        model.from_mongo(document)
    except MalformedDocument as exc:
        return str(exc).removeprefix(f"{collection} {document['_id']}: ")
    if collection == DispatchedSamplingTask.collection:
        reply = document.get("response") or {}
        arrays = {"prompt_ids": document.get("prompt_ids")}
        arrays |= {f"response.{name}": reply.get(name) for name in ("output_ids", "output_logprobs")}
        for name, packed in arrays.items():
            if len(packed or b"") % 4:
                return f"{name}: {len(packed or b'')} bytes; expected 4 for each token"
    return None
