"""Verbs on evaluation rounds: one weight version plays the held-out tasks once.

The held-out set is split `eval`, epoch 0. The round at version v is a copy with epoch v and `at_version` v, which only
engines with that version play. Any process may queue a round, also repeatedly; samplers play it.
"""

from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Slot, Task, task_id
from shared.documents.states import CLAIMABLE, OVER, TaskStatus
from shared.names import EVAL_SPLIT
from shared.store.malformed import readable
from shared.store.pipelines import EPOCH
from shared.store.retry import survives_outages
from shared.store.signals import Signal, Signals
from shared.store.tasks import TASKS_AT_ONCE, TaskVerbs

Document = dict[str, Any]


@survives_outages
class EvaluationVerbs:
    def __init__(self, database: AsyncDatabase[Document], tasks: TaskVerbs, signals: Signals) -> None:
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._records: AsyncCollection[Document] = database["records"]
        self._verbs, self._signals = tasks, signals

    async def queue_round(self, policy: str, version: int) -> int:
        """Queue the held-out set for `version`; returns the number of new tasks. A repetition queues only missing tasks."""
        held_out = await readable(Task, self._tasks.find(_round(policy, 0)).sort([("seq", 1)]))
        inserted = 0
        for start in range(0, len(held_out), TASKS_AT_ONCE):
            inserted += await self._insert_copies(held_out[start : start + TASKS_AT_ONCE], version)
        return inserted

    async def _insert_copies(self, tasks: Sequence[Task], version: int) -> int:
        inserted = 0
        while True:
            ids = [task_id(task.policy, EVAL_SPLIT, version, task.tid) for task in tasks]
            stored = await self._verbs.existing_payloads(ids)
            missing = [task for task, identity in zip(tasks, ids, strict=True) if identity not in stored]
            if not missing:
                return inserted
            first = await self._verbs.next_seq(tasks[0].policy, EVAL_SPLIT)
            copies = [_copy(task, version, seq) for seq, task in enumerate(missing, start=first)]
            inserted += await self._verbs.insert_new(copies, ordered=True)

    async def awaited_version(self, policy: str, *, before: int) -> int | None:
        """The version, below `before`, of the oldest unfinished round: an engine must keep serving it."""
        where = {**_open(policy), "at_version": {"$lt": before}}
        document = await self._tasks.find_one(where, {"at_version": 1}, sort=[("seq", 1)])
        return None if document is None else int(document["at_version"])

    async def open_versions(self, policy: str) -> list[int]:
        """Versions that unfinished rounds need; their files must be kept."""
        versions = await self._tasks.distinct("at_version", _open(policy))
        return sorted(version for version in versions if version is not None)

    async def withdraw(self, policy: str, versions: Sequence[int]) -> int:
        """Skip unfinished rounds at versions that a resume withdrew; returns the number of skipped tasks."""
        result = await self._tasks.update_many(
            {**_open(policy), "at_version": {"$in": list(versions)}},
            {
                "$set": {"status": TaskStatus.SKIPPED.value, "outcome": "skipped: its version was withdrawn"},
                "$currentDate": {"settled_at": True},
            },
        )
        self._signals.send(Signal.DATA)
        return result.modified_count

    # ------------------------------------------------------------------ questions

    async def count_round(self, policy: str, epoch: int) -> tuple[int, int]:
        """(finished tasks of a round, all of its tasks)."""
        over = await self._tasks.count_documents({**_round(policy, epoch), "status": {"$in": OVER}})
        return over, await self._tasks.count_documents(_round(policy, epoch))

    async def epochs(self, policy: str) -> list[int]:
        """Epochs of all queued rounds."""
        return sorted(await self._tasks.distinct("epoch", {"policy": policy, "split": EVAL_SPLIT}))

    async def round_tasks(self, policy: str, epoch: int) -> list[Task]:
        """Every task of a round, in order."""
        cursor = self._tasks.find(_round(policy, epoch)).sort([("seq", 1)])
        return await readable(Task, cursor)

    async def round_records(self, record_ids: Sequence[str]) -> dict[str, Document]:
        """{record id: {"termination", "num_turns", "num_tokens", "score", scores and versions of its policies}}."""
        optional = ("policy_versions", "other_policy_versions", "policy_scores")
        names = dict.fromkeys(("termination", "num_turns", "num_tokens", "score", *optional), 1)
        by_id: dict[str, Document] = {}
        for start in range(0, len(record_ids), TASKS_AT_ONCE):
            cursor = self._records.find({"_id": {"$in": list(record_ids[start : start + TASKS_AT_ONCE])}}, names)
            by_id |= {document["_id"]: document async for document in cursor}
        return by_id


def _round(policy: str, epoch: int) -> Document:
    return {"policy": policy, "split": EVAL_SPLIT, "epoch": epoch}


def _open(policy: str) -> Document:
    return {"policy": policy, "split": EVAL_SPLIT, "status": {"$in": CLAIMABLE}}


def _copy(task: Task, version: int, seq: int) -> Task:
    return Task(
        id=task_id(task.policy, EVAL_SPLIT, version, task.tid),
        tid=task.tid,
        split=EVAL_SPLIT,
        epoch=version,
        policy=task.policy,
        seq=seq,
        source=task.source,
        at_version=version,
        payload=task.payload,
        num_generations=task.num_generations,
        slots=[Slot(traj_id=k, free_at=EPOCH) for k in range(task.num_generations)],
        free_at=EPOCH,
    )
