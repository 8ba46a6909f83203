"""Verbs on attempts of agents that run elsewhere. Any gateway process may continue an attempt: the documents are its state.

open_turn   inserts request n, unless another process inserted its own n: then that one's turns are not known here
            and then looks whether the attempt has ended   ─┐ each writes first and reads then, so that at least one
end         says how it ended, then its turns are read      ─┘ of them sees the other
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Claim, DispatchedSamplingTask, Record
from shared.documents.agent_sessions import AgentSession, MetLimit, SessionEnd
from shared.documents.states import RecordStatus
from shared.store.pipelines import NOW, insert_once, literal
from shared.store.records import closing_update, reply_update
from shared.store.retry import survives_outages

Document = dict[str, Any]


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

    async def ensure_indexes(self) -> None:
        await self._records.create_index(
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
        """Write a request before it is asked, and the results of earlier ones. `dispatch.client.asked_by` must be set."""
        assert dispatch.client is not None, "requests of other processes are told by it"
        updates = [
            *map(closing_update, closing),
            UpdateOne({"_id": dispatch.id}, insert_once(dispatch.to_mongo()), upsert=True),
        ]
        done = await self._dispatches.bulk_write(updates)
        if not done.upserted_count and not await self._is_asked_by(dispatch.id, dispatch.client.asked_by):
            return Opened.TAKEN
        return Opened.OPEN if await self._is_played(dispatch.record) else Opened.ENDED

    async def _is_asked_by(self, dispatch_id: str, asked_by: str | None) -> bool:
        """Whether the request that is there is of this process: its first attempt to write it came through."""
        return (
            await self._dispatches.find_one({"_id": dispatch_id, "client.asked_by": asked_by}, {"_id": 1}) is not None
        )

    async def save_reply(self, dispatch: DispatchedSamplingTask) -> bool:
        """Write the reply, and leave the request open for the results of its tool calls. False: it was closed before."""
        found = await self._dispatches.update_one({"_id": dispatch.id, "finished_at": None}, reply_update(dispatch))
        return found.matched_count == 1

    async def post_score(self, record_id: str, score: float) -> bool:
        """Replace the attempt's score. False: the attempt has ended."""
        return (
            await self._records.update_one(_played(record_id), {"$set": {"session.score": score}})
        ).matched_count == 1

    async def score_turn(self, record_id: str, turn: str, score: float) -> bool:
        """Replace the score of an answered turn. False: there is none, or the attempt has ended."""
        if not await self._is_played(record_id):
            return False
        where = {"_id": f"{record_id}:{turn}", "record": record_id, "response": {"$ne": None}}
        return (await self._dispatches.update_one(where, {"$set": {"score": score}})).matched_count == 1

    async def meet_limit(self, record_id: str, limit: MetLimit) -> None:
        """Note that a request met a limit of the episode."""
        said = {"session.limit": limit.model_dump()}
        await self._records.update_one(_played(record_id), {"$set": said})

    async def end(self, record_id: str, end: SessionEnd) -> Record | None:
        """End the attempt; the first caller decides how. Returns the record, or None if there is no such attempt."""
        said = {"session.end": literal(end.model_dump()), "session.ended_at": NOW}
        where = {"_id": record_id, "session": {"$ne": None}}
        await self._records.update_one(where | {"session.end": None}, [{"$set": said}])
        document = await self._records.find_one(where)
        return None if document is None else Record.from_mongo(document)

    async def over(self, record_ids: Sequence[str]) -> set[str]:
        """Those of these attempts that have ended, at any process."""
        ended: Document = {"$or": [{"session.end": {"$ne": None}}, {"status": {"$ne": RecordStatus.RUNNING.value}}]}
        found = self._records.find({"_id": {"$in": list(record_ids)}, **ended}, {"_id": 1})
        return {document["_id"] async for document in found}

    async def _is_played(self, record_id: str) -> bool:
        return await self._records.find_one(_played(record_id), {"_id": 1}) is not None


def _played(record_id: str) -> Document:
    """Filter of an attempt that has not ended."""
    return {"_id": record_id, "status": RecordStatus.RUNNING.value, "session.end": None}
