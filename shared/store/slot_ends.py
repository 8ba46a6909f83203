"""How a claim leaves its slot: by one atomic update under the fence. Slots that are scored at the same time share a command."""

from collections.abc import Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection

from shared.documents import Claim
from shared.documents.states import SlotStatus, TaskStatus
from shared.errors import LeaseLost
from shared.store.signals import Signal, Signals
from shared.store.slots import holding, leaving
from shared.store.spoilt_tasks import SpoiltTasks
from shared.store.together import Together

Document = dict[str, Any]
SCORED = (SlotStatus.SCORED,)


class SlotEnds:
    def __init__(self, tasks: AsyncCollection[Document], spoilt: SpoiltTasks, signals: Signals) -> None:
        self._tasks, self._spoilt, self._signals = tasks, spoilt, signals
        self._scores = Together(self._score_all)

    async def score(self, claim: Claim, change: Document) -> bool:
        """Returns True if the group is complete with it. Raises LeaseLost."""
        return await self._scores.ask((claim, change))

    async def leave(
        self, claim: Claim, change: Document, ends: Sequence[SlotStatus], more: Sequence[Document] = ()
    ) -> bool:
        """Change the slot that `claim` holds; `ends` are its possible states afterwards. `more`: stages of the update. Returns
        True if the group is complete with it. Raises LeaseLost."""
        document = await self._spoilt.update(holding(claim), leaving(claim, change, more), projection={"status": 1})
        if document is None:
            document = await self.ended_before(claim, ends)
        if document is None:
            raise LeaseLost(f"task {claim.task.id} slot {claim.traj_id}: attempt {claim.attempt} is no longer current")
        completed = bool(document["status"] == TaskStatus.COMPLETED)
        if completed or SlotStatus.OPEN in ends:
            self._signals.send(Signal.TASKS)
        return completed

    async def ended_before(self, claim: Claim, ends: Sequence[SlotStatus]) -> Document | None:
        """The task, if this attempt has already ended its slot, that is, if the acknowledgement of the first try was lost."""
        ended: Document = {"traj_id": claim.traj_id, "attempt": claim.attempt}
        ended |= {"record_id": claim.record_id, "status": {"$in": list(ends)}}
        return await self._tasks.find_one({"_id": claim.task.id, "slots": {"$elemMatch": ended}}, {"status": 1})

    async def _score_all(self, ends: Sequence[tuple[Claim, Document]]) -> list[bool]:
        """In one command; one by one if any of them was refused."""
        if len(ends) > 1:
            updates = [UpdateOne(holding(claim), leaving(claim, change)) for claim, change in ends]
            if (await self._tasks.bulk_write(updates, ordered=False)).matched_count == len(ends):
                return await self._completed([claim.task.id for claim, _ in ends])
        return [await self.leave(claim, change, SCORED) for claim, change in ends]

    async def _completed(self, ids: Sequence[str]) -> list[bool]:
        """Whether each of these groups waits for its settlement."""
        where = {"_id": {"$in": list(set(ids))}, "status": TaskStatus.COMPLETED.value}
        complete = {document["_id"] async for document in self._tasks.find(where, {"_id": 1})}
        if complete:
            self._signals.send(Signal.TASKS)
        return [name in complete for name in ids]
