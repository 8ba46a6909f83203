"""Verbs on records and dispatches: the attempt that owns an episode writes its events as they happen.

A record's id contains its attempt, so an attempt that lost its lease can only write to its own record, which is not
read: settlement follows the slots' `record_id`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Claim, DispatchedSamplingTask, DispatchTokens, Record
from shared.documents.states import RECORD_MOVES, DispatchStatus, RecordStatus, origins
from shared.errors import IllegalMove
from shared.store.counting import count_by
from shared.store.indexes import add_index, build_index
from shared.store.pipelines import NOW, insert_once, literals
from shared.store.retry import survives_outages
from shared.store.together import BatchedUpdates, Together

Document = dict[str, Any]
Move = tuple[str, RecordStatus, Mapping[str, Any]]
D = TypeVar("D", DispatchedSamplingTask, DispatchTokens)
SEARCHED = (
    "source",
    "tid",
    "termination",
    "score",
)  # by whom people filter episodes, the newest first; costs: docs/run/database.md
WRITTEN_WITH_THE_ANSWER = {
    "status",
    "error",
    "service",
    "engines",
    "sampled_by",
    "played_by",
    "response",
    "weight_versions",
    "continuations",
    "routed_experts",
    "usage",
    "tool_calls",
    "score",
}
TOKENS = [
    *("record", "turn", "parent", "shared_length", "status", "sampling_params", "prompt_ids", "images"),
    *("weight_versions", "service", "engines", "sampled_by", "routed_experts"),
    *("response.output_ids", "response.output_logprobs", "response.truncated_logprobs"),
]


@survives_outages
class RecordVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._records: AsyncCollection[Document] = database["records"]
        self._dispatches: AsyncCollection[Document] = database["dispatched_sampling_tasks"]
        self._updates = BatchedUpdates(self._records)
        self._requests = BatchedUpdates(self._dispatches)
        self._moves = Together(self._move_all)
        self._reads = Together(self._get_all)
        self._turn_reads = Together(self._turns_of_all)

    async def ensure_indexes(self) -> None:
        attempt = [("task", 1), ("traj_id", 1), ("attempt", 1)]
        await build_index(self._records, attempt, name="identity", unique=True)
        await add_index(self._records, [("split", 1), ("status", 1), ("finished_at", -1)], name="recent")
        await add_index(self._records, [("finished_at", 1), ("_id", 1)], name="finished")
        await add_index(self._records, [("last_trained_step", 1)], name="trained")
        for field in SEARCHED:
            await add_index(self._records, [(field, 1), ("finished_at", -1)], name=f"by {field}")
        await add_index(self._dispatches, [("record", 1), ("turn", 1)], name="record")
        # Of failed turns and of turns with failed calls alone: a turn that went well costs nothing.
        failed, wrong_call = {"error": {"$type": "string"}}, {"tool_calls.is_error": True}
        await add_index(self._dispatches, [("status", 1)], name="failed", partialFilterExpression=failed)
        calls = [("tool_calls.is_error", 1), ("tool_calls.name", 1)]
        await add_index(self._dispatches, calls, name="tool errors", partialFilterExpression=wrong_call)

    async def start(self, claim: Claim, worker: str) -> Record:
        """Create the record of a newly claimed slot."""
        record = Record.of(claim, worker)
        await self._updates.ask([UpdateOne({"_id": record.id}, insert_once(record.to_mongo()), upsert=True)])
        return record

    async def open_dispatch(
        self, dispatch: DispatchedSamplingTask, closing: Sequence[DispatchedSamplingTask] = ()
    ) -> None:
        """Write a request before it is sent, and in the same command the results of earlier ones."""
        opening = UpdateOne({"_id": dispatch.id}, insert_once(dispatch.to_mongo()), upsert=True)
        await self._requests.ask([*map(closing_update, closing), opening])

    async def close_dispatches(self, dispatches: Sequence[DispatchedSamplingTask]) -> None:
        """Write the answers, tool calls and final states of requests."""
        if dispatches:
            await self._requests.ask(list(map(closing_update, dispatches)))

    async def move(self, record_id: str, to: RecordStatus, values: Mapping[str, Any]) -> bool:
        """Move a record and write `values` with it. False: it was, or may have been, there already, with the values of the first
        move.

        Raises IllegalMove if the state machine lacks the move.
        """
        return await self._moves.ask((record_id, to, values))

    async def _move_all(self, moves: Sequence[Move]) -> list[bool]:
        done = await self._records.bulk_write(
            [
                UpdateOne(
                    {"_id": record_id, "status": {"$in": origins(RECORD_MOVES, to)}},
                    [{"$set": {**literals(dict(values)), "status": to.value, "finished_at": NOW}}],
                )
                for record_id, to, values in moves
            ],
            ordered=False,
        )
        if done.matched_count == len(moves):
            return [True] * len(moves)
        for record_id, to, _ in moves:  # some were not moved now: each has to be where it should be
            stored = await self._records.find_one({"_id": record_id}, {"status": 1})
            if stored is None or stored["status"] != to:
                raise IllegalMove(
                    f"record {record_id}: {stored and stored['status']} -> {to}; not among the legal moves"
                )
        return [False] * len(moves)

    async def settle_group(
        self,
        task_id: str,
        statuses: Mapping[str, RecordStatus],
        advantages: Mapping[str, float],
        reasons: Mapping[str, str],
        *,
        are_all: bool = False,
    ) -> None:
        """Write final state, advantage and reason of the group's records; abandon all other attempts of the task. `are_all`:
        there were no others.

        Cancels the open requests of these attempts, which crashed processes left behind.
        """
        updates = [
            UpdateOne(
                {"_id": rid, "status": {"$in": origins(RECORD_MOVES, status)}},
                {"$set": {"status": status.value, "advantage": advantages.get(rid), "reason": reasons.get(rid)}},
            )
            for rid, status in statuses.items()
        ]
        if updates:
            await self._updates.ask(updates)
        if are_all:
            return
        open_states = [s.value for s in (RecordStatus.RUNNING, RecordStatus.COMPLETED, RecordStatus.SCORED)]
        others: Document = {"task": task_id, "_id": {"$nin": list(statuses)}}
        lost = [d["_id"] async for d in self._records.find(others | {"status": {"$in": open_states}}, {"_id": 1})]
        if lost:
            await self._dispatches.update_many(
                {"record": {"$in": lost}, "status": {"$in": [DispatchStatus.PENDING, DispatchStatus.RUNNING]}},
                {"$set": {"status": DispatchStatus.CANCELLED.value, "error": "its process ended"}},
            )
            await self._records.update_many(
                {"_id": {"$in": lost}, "status": {"$in": open_states}},
                {"$set": {"status": RecordStatus.ABANDONED.value}},
            )

    async def set_turn_scores(self, scores: Mapping[str, float]) -> None:
        """{dispatch id: score of the turn}."""
        await self._set_on_dispatches("score", scores)

    async def set_advantages(self, advantages: Mapping[str, float]) -> None:
        """{dispatch id: advantage}."""
        await self._set_on_dispatches("advantage", advantages)

    async def _set_on_dispatches(self, name: str, values: Mapping[str, float]) -> None:
        if values:
            updates = [UpdateOne({"_id": did}, {"$set": {name: value}}) for did, value in values.items()]
            await self._requests.ask(updates)

    async def get(self, record_id: str) -> Record | None:
        document = await self._records.find_one({"_id": record_id})
        return None if document is None else Record.from_mongo(document)

    async def get_many(self, record_ids: Sequence[str]) -> dict[str, Record]:
        return await self._reads.ask(record_ids)

    async def _get_all(self, questions: Sequence[Sequence[str]]) -> list[dict[str, Record]]:
        cursor = self._records.find({"_id": {"$in": _each_once(questions)}})
        records = {d["_id"]: Record.from_mongo(d) async for d in cursor}
        return [{rid: records[rid] for rid in ids if rid in records} for ids in questions]

    async def dispatches_of(self, record_ids: Sequence[str]) -> dict[str, list[DispatchedSamplingTask]]:
        """{record id: its dispatches in order}."""
        return await self._turn_reads.ask(record_ids)

    async def _turns_of_all(self, questions: Sequence[Sequence[str]]) -> list[dict[str, list[DispatchedSamplingTask]]]:
        ids = _each_once(questions)
        cursor = self._dispatches.find({"record": {"$in": ids}})
        turns = _in_order(ids, [DispatchedSamplingTask.from_mongo(d) async for d in cursor])
        return [{rid: turns[rid] for rid in of} for of in questions]

    async def tokens_of(self, record_ids: Sequence[str]) -> dict[str, list[DispatchTokens]]:
        """{record id: the tokens of its dispatches in order}: the input of `shared.tokens.flatten`, without texts."""
        cursor = self._dispatches.find({"record": {"$in": list(record_ids)}}, TOKENS)
        return _in_order(record_ids, [DispatchTokens.from_mongo(d) async for d in cursor])

    async def recent(self, limit: int, *, split: str | None = None) -> list[Record]:
        """The most recently finished records."""
        where: Document = {"finished_at": {"$ne": None}} | ({} if split is None else {"split": split})
        cursor = self._records.find(where).sort([("finished_at", -1)]).limit(limit)
        return [Record.from_mongo(d) async for d in cursor]

    async def count_by_status(self, most: int | None = None) -> dict[str, int]:
        """`most`: a larger number stands for more than that; None: all are counted."""
        counts: Counter[str] = Counter()
        for of, n in await count_by(self._records, "recent", ("split", "status"), {}, most):
            counts[of["status"]] += n
        return dict(counts)


def _each_once(questions: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(one for ids in questions for one in ids))


def _in_order(record_ids: Sequence[str], dispatches: Iterable[D]) -> dict[str, list[D]]:
    by_record: dict[str, list[D]] = {rid: [] for rid in record_ids}
    for dispatch in dispatches:
        by_record[dispatch.record].append(dispatch)
    for those in by_record.values():
        those.sort(key=lambda d: int(d.id.rsplit(":", 1)[1]))
    return by_record


def reply_update(dispatch: DispatchedSamplingTask) -> Document:
    """Everything that is known after the reply."""
    return {"$set": dispatch.model_dump(include=WRITTEN_WITH_THE_ANSWER, exclude_defaults=True)}


def closing_update(dispatch: DispatchedSamplingTask) -> UpdateOne:
    """Once: a closed request never changes."""
    closing = {**reply_update(dispatch), "$currentDate": {"finished_at": True}}
    return UpdateOne({"_id": dispatch.id, "finished_at": None}, closing)
