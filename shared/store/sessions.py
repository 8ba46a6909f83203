"""Verbs on attempts of agents that run elsewhere. Any gateway process may continue an attempt: the documents are its state.

open_turn   inserts request n, unless another process inserted its own n: then that one's turns are not known here
            and then looks whether the attempt has ended   ─┐ each writes first and reads then, so that at least one
end         says how it ended, then its turns are read      ─┘ of them sees the other
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any

from pymongo import ReturnDocument, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Claim, DispatchedSamplingTask, Record
from shared.documents.agent_sessions import AgentSession, MetLimit, SessionEnd
from shared.documents.states import RecordStatus, SlotStatus
from shared.store.indexes import build_index
from shared.store.pipelines import NOW, insert_once, literal
from shared.store.records import closing_update, reply_update
from shared.store.retry import survives_outages
from shared.store.together import Together

Document = dict[str, Any]
OpeningTurn = tuple[DispatchedSamplingTask, Sequence[DispatchedSamplingTask]]  # and the earlier ones that it closes

_PLAYED: Document = {
    "status": RecordStatus.RUNNING.value,
    "session.end": None,
}  # filter of attempts that have not ended


class Opened(StrEnum):
    """What became of `open_turn`."""

    OPEN = "open"
    TAKEN = "taken"  # another process wrote a request with this number
    ENDED = "ended"  # the attempt has ended: the request must not be asked


@survives_outages
class SessionVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._records: AsyncCollection[Document] = database["records"]
        self._dispatches: AsyncCollection[Document] = database["dispatched_sampling_tasks"]
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._opening = Together(self._open_turns)
        self._saving = Together(self._save_replies)

    async def ensure_indexes(self) -> None:
        await build_index(
            self._records,
            [("session.key_hash", 1)],
            name="session",
            unique=True,
            partialFilterExpression={"session.key_hash": {"$exists": True}},
        )

    async def begin(self, claim: Claim, worker: str, session: AgentSession) -> None:
        """Create the record of a newly claimed slot, with its session."""
        record = Record.of(claim, worker, session)
        await self._records.update_one({"_id": record.id}, insert_once(record.to_mongo()), upsert=True)

    async def find(self, key_hash: str) -> Record | None:
        document = await self._records.find_one({"session.key_hash": key_hash})
        return None if document is None else Record.from_mongo(document)

    async def open_turn(
        self, dispatch: DispatchedSamplingTask, closing: Sequence[DispatchedSamplingTask] = ()
    ) -> Opened:
        """Write a request before it is asked, and the results of earlier ones. `dispatch.client.requested_by` must be set."""
        return await self._opening.ask((dispatch, closing))

    async def _open_turns(self, turns: Sequence[OpeningTurn]) -> list[Opened]:
        updates: list[UpdateOne] = []
        inserted_by: list[int] = []  # the index of each turn's own update
        for dispatch, closing in turns:
            updates += map(closing_update, closing)
            inserted_by.append(len(updates))
            updates.append(UpdateOne({"_id": dispatch.id}, insert_once(dispatch.to_mongo()), upsert=True))
        done = await self._dispatches.bulk_write(updates, ordered=False)
        is_new = [at in (done.upserted_ids or {}) for at in inserted_by]
        played = await self._played({dispatch.record for dispatch, _ in turns})
        return [
            await self._opened(dispatch, played, is_new=new) for (dispatch, _), new in zip(turns, is_new, strict=True)
        ]

    async def _opened(self, dispatch: DispatchedSamplingTask, played: set[str], *, is_new: bool) -> Opened:
        assert dispatch.client is not None, "requests of other processes are told by it"
        if not is_new and not await self._is_asked_by(dispatch.id, dispatch.client.requested_by):
            return Opened.TAKEN
        return Opened.OPEN if dispatch.record in played else Opened.ENDED

    async def has_turn(self, record_id: str, turn: int) -> bool:
        """Whether a request has this number. If not, none has a higher one: each process gives out the next it knows of."""
        return await self._dispatches.find_one({"_id": f"{record_id}:{turn}"}, {"_id": 1}) is not None

    async def _is_asked_by(self, dispatch_id: str, requested_by: str | None) -> bool:
        """Whether the request that is there is of this process: its first attempt to write it came through."""
        return (
            await self._dispatches.find_one({"_id": dispatch_id, "client.requested_by": requested_by}, {"_id": 1})
            is not None
        )

    async def save_reply(self, dispatch: DispatchedSamplingTask) -> bool:
        """Write the reply, and leave the request open for the results of its tool calls. False: it was closed before."""
        return await self._saving.ask(dispatch)

    async def _save_replies(self, dispatches: Sequence[DispatchedSamplingTask]) -> list[bool]:
        updates = [UpdateOne({"_id": each.id, "finished_at": None}, reply_update(each)) for each in dispatches]
        written = await self._dispatches.bulk_write(updates, ordered=False)
        if len(dispatches) == 1 or written.matched_count == len(dispatches):
            return [written.matched_count == len(dispatches)] * len(dispatches)
        return [(await self._save_replies([each]))[0] for each in dispatches]  # one was closed: which?

    async def post_score(self, record_id: str, score: float) -> bool:
        """Replace the attempt's score. False: the attempt has ended."""
        return (
            await self._records.update_one({"_id": record_id, **_PLAYED}, {"$set": {"session.score": score}})
        ).matched_count == 1

    async def score_turn(self, record_id: str, turn: str, score: float) -> bool:
        """Replace the score of an answered turn. False: there is none, or the attempt has ended."""
        if not await self._played([record_id]):
            return False
        where = {"_id": f"{record_id}:{turn}", "record": record_id, "response": {"$ne": None}}
        return (await self._dispatches.update_one(where, {"$set": {"score": score}})).matched_count == 1

    async def meet_limit(self, record_id: str, limit: MetLimit) -> None:
        """Note that a request met a limit of the episode."""
        change = {"session.limit": limit.model_dump()}
        await self._records.update_one({"_id": record_id, **_PLAYED}, {"$set": change})

    async def count_replays(self, record_id: str, by: str, count: int) -> None:
        """`by` has told `count` earlier replies of the attempt once more. `by`: a name without dots."""
        await self._records.update_one({"_id": record_id, **_PLAYED}, {"$max": {f"session.replayed.{by}": count}})

    async def end(self, record_id: str, end: SessionEnd) -> Record | None:
        """End the attempt; the first caller decides how. Returns the record, or None if there is no such attempt."""
        change = {"session.end": literal(end.model_dump()), "session.ended_at": NOW}
        where = {"_id": record_id, "session": {"$ne": None}}
        document = await self._records.find_one_and_update(
            where | {"session.end": None}, [{"$set": change}], return_document=ReturnDocument.AFTER
        )
        if document is None:
            document = await self._records.find_one(where)
        return None if document is None else Record.from_mongo(document)

    async def over(self, record_ids: Sequence[str]) -> set[str]:
        """Those of these attempts that have ended, at any process."""
        ended: Document = {"$or": [{"session.end": {"$ne": None}}, {"status": {"$ne": RecordStatus.RUNNING.value}}]}
        cursor = self._records.find({"_id": {"$in": list(record_ids)}, **ended}, {"_id": 1})
        return {document["_id"] async for document in cursor}

    async def held_by(self, worker: str, claims: Sequence[Claim]) -> set[str]:
        """The records of those of these attempts whose slot `worker` has: no other process renewed its lease since."""
        is_its = {"$and": [{"$eq": ["$$s.worker", literal(worker)]}, {"$eq": ["$$s.status", SlotStatus.LEASED.value]}]}
        listed: Document = {
            "$cond": [{"$isArray": "$slots"}, "$slots", []]
        }  # a malformed task has none that can be held
        slots = {"$filter": {"input": listed, "as": "s", "cond": is_its}}
        held: Document = {"held": {"$map": {"input": slots, "as": "s", "in": ["$$s.traj_id", "$$s.attempt"]}}}
        cursor = self._tasks.find({"_id": {"$in": list({claim.task.id for claim in claims})}}, held)
        its = {(task["_id"], *slot) async for task in cursor for slot in task["held"]}
        return {claim.record_id for claim in claims if (claim.task.id, claim.traj_id, claim.attempt) in its}

    async def _played(self, record_ids: Collection[str]) -> set[str]:
        """Those of these attempts that have not ended."""
        cursor = self._records.find({"_id": {"$in": list(record_ids)}, **_PLAYED}, {"_id": 1})
        return {document["_id"] async for document in cursor}
