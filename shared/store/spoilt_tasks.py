"""Abandons malformed tasks (which do not fit their model, or on which the server's update fails) with the reason.

A malformed task that stayed claimable would be found by every claim and crash all samplers.
"""

from collections.abc import Sequence
from typing import Any

from pymongo import ASCENDING, ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from shared.documents import Task
from shared.documents.states import SlotStatus, TaskStatus
from shared.errors import MalformedDocument
from shared.store.indexes import NO_SUCH_INDEX
from shared.store.malformed import MalformedVerbs
from shared.store.pipelines import literal

Document = dict[str, Any]
BY_SEQ = [("seq", ASCENDING)]


class SpoiltTasks:
    def __init__(self, tasks: AsyncCollection[Document], malformed: MalformedVerbs) -> None:
        self._tasks = tasks
        self._malformed = malformed

    async def read(self, document: Document) -> Task | None:
        """The task; None if it was set aside."""
        try:
            return _checked(document)
        except MalformedDocument as exc:
            await self._set_aside(document, exc)
            return None

    async def update(
        self,
        where: Document,
        pipeline: list[Document],
        options: Document | None = None,
        *,
        projection: Document | None = None,
        order: Sequence[tuple[str, int]] = BY_SEQ,
    ) -> Document | None:
        """Update the first task of `where`, and return it. A task on which the update fails is set aside. `options`: of the
        query."""
        first = where
        while True:
            try:
                return await self._tasks.find_one_and_update(
                    first,
                    pipeline,
                    projection,
                    sort=order,
                    return_document=ReturnDocument.AFTER,
                    **(options or {}),
                )
            except OperationFailure as exc:
                if NO_SUCH_INDEX in str(exc):
                    raise
                await self._set_aside_after(exc, first, order)
                first = {"$and": [where, {"status": {"$ne": TaskStatus.ABANDONED.value}}]}

    async def _set_aside_after(
        self, refusal: OperationFailure, where: Document, order: Sequence[tuple[str, int]]
    ) -> None:
        """Set aside the first task of `where`. Raises `refusal` if that task is well-formed."""
        document = await self._tasks.find_one(where, sort=order)
        if document is None or await self.read(document) is not None:
            raise refusal

    async def _set_aside(self, document: Document, exc: MalformedDocument) -> None:
        """Only if the document is unchanged since it was read: a user may have repaired it."""
        await self._tasks.update_one(
            {"_id": document["_id"], "$expr": {"$eq": ["$$ROOT", literal(document)]}},
            {
                "$set": {"status": TaskStatus.ABANDONED.value, "outcome": f"malformed: {exc}"},
                "$currentDate": {"settled_at": True},
            },
        )
        await self._malformed.note(exc)


def _checked(document: Document) -> Task:
    """Validate single fields by the model, then the rules between fields."""
    task = Task.from_mongo(document)
    if [slot.traj_id for slot in task.slots] != list(range(task.num_generations)):
        raise MalformedDocument("tasks", task.id, f"slots: expected traj_id 0 to {task.num_generations - 1}, in order")
    for one in task.group_scores:
        if not len(one.values) == len(one.reasons) == task.num_generations:
            raise MalformedDocument(
                "tasks", task.id, f"group_scores of {one.scorer}: expected {task.num_generations} values"
            )
    for slot in task.slots:
        if slot.status is SlotStatus.SCORED and (slot.record_id is None or slot.score is None):
            raise MalformedDocument("tasks", task.id, f"slots.{slot.traj_id}: scored, without a record_id or a score")
        if slot.status is SlotStatus.WAITING and slot.record_id is None:
            raise MalformedDocument("tasks", task.id, f"slots.{slot.traj_id}: waits for feedback, without a record_id")
    return task
