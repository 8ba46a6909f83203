"""Verbs on tasks and their slots. One verb is one atomic update; leases run on the server's clock; `attempt` is the fence.

import ─▶ created ─claim─▶ running ─last slot finishes─▶ completed ─settle─▶ settled | abandoned
slot:     open ─claim─▶ leased ─finish─▶ scored | failed          (retry, release, expiry: back to open)
                            └─await_feedback─▶ waiting ─feedback, deadline─▶ scored | failed   (shared/store/feedback.py)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pymongo import ASCENDING, ReturnDocument, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import BulkWriteError

from shared.documents import Claim, Task, record_id
from shared.documents.scoring import WeightedScorer, of_group
from shared.documents.states import NEVER_OPENED, PLAYED, UNENDED, SlotStatus, TaskStatus
from shared.names import FORK_SPLIT
from shared.store.counting import count_by
from shared.store.curriculum import skipping
from shared.store.indexes import add_index, build_index, with_index
from shared.store.malformed import MalformedVerbs, readable
from shared.store.pipelines import (
    LEAST_FREE_AT,
    NOW,
    after,
    is_slot,
    literal,
    literals,
    merge_slot,
)
from shared.store.retry import DUPLICATE_KEY, survives_outages
from shared.store.signals import Signal, Signals
from shared.store.slot_ends import SlotEnds
from shared.store.slots import (
    CLAIM_ORDER,
    CLAIMABLE_NOW,
    LEASED_SLOTS,
    Unplayable,
    bug_met,
    claim_pipeline,
    claims_of,
    due_for_settlement,
    holding,
    leased_for_settlement,
    opened_by,
    playable_without,
    reopened,
    settled,
)
from shared.store.spoilt_tasks import SpoiltTasks
from shared.store.together import BatchedUpdates

Document = dict[str, Any]
TASKS_AT_ONCE = 1_000  # per insertion or query by id
HAS_FAILURES: Document = {"slots.failures": {"$gt": 0}}
PLAYED_TO_THE_END = (SlotStatus.WAITING, SlotStatus.SCORED)  # by the attempt that the slot names


# 22 methods: the verbs of one collection
@survives_outages
class TaskVerbs:
    def __init__(self, database: AsyncDatabase[Document], signals: Signals) -> None:
        self._signals = signals
        self._tasks: AsyncCollection[Document] = database["tasks"]
        self._spoilt = SpoiltTasks(self._tasks, MalformedVerbs(database))
        self._ends = SlotEnds(self._tasks, self._spoilt, signals)
        self._finishes = BatchedUpdates(self._tasks)

    async def ensure_indexes(self) -> None:
        free = [("policy", ASCENDING), ("split", ASCENDING), *CLAIM_ORDER]
        await add_index(self._tasks, free, name="free")
        by_status = [(field, ASCENDING) for field in ("policy", "split", "status", "seq")]
        await add_index(self._tasks, by_status, name="by status")
        named = [("policy", 1), ("split", 1), ("epoch", 1), ("tid", 1)]
        await build_index(self._tasks, named, name="identity", unique=True)
        await build_index(self._tasks, [("policy", 1), ("split", 1), ("seq", 1)], name="order", unique=True)
        # Both indexes are small: settlement is queried after every episode, failures every two seconds by the launcher's display.
        completed = {"status": TaskStatus.COMPLETED.value}
        await add_index(self._tasks, [("policy", 1), ("free_at", 1)], name="settle", partialFilterExpression=completed)
        await add_index(self._tasks, [("settled_at", 1), ("_id", 1)], name="settled")
        await add_index(self._tasks, [("slots.failures", 1)], name="failures", partialFilterExpression=HAS_FAILURES)

    # ------------------------------------------------------------------ import

    async def next_seq(self, policy: str, split: str) -> int:
        last = await self._tasks.find_one({"policy": policy, "split": split}, {"seq": 1}, sort=[("seq", -1)])
        return 0 if last is None else int(last["seq"]) + 1

    async def existing_payloads(self, ids: Sequence[str]) -> dict[str, Document]:
        """{id: payload} of the stored tasks among `ids`."""
        cursor = self._tasks.find({"_id": {"$in": list(ids)}}, {"payload": 1})
        return {d["_id"]: d["payload"] async for d in cursor}

    async def insert_new(self, tasks: Sequence[Task], *, ordered: bool = False) -> int:
        """Insert tasks that do not exist yet; returns their number. Existing ones are unchanged.

        `ordered`: stop at the first whose id or `seq` is taken, so that concurrent importers leave no gap in `seq`.
        """
        if not tasks:
            return 0
        documents = [task.to_mongo() for task in tasks]
        try:
            await self._tasks.insert_many(documents, ordered=ordered)
        except BulkWriteError as exc:
            others = [e for e in exc.details["writeErrors"] if e["code"] != DUPLICATE_KEY]
            # Write concern errors: no majority has the documents, so they may still be lost.
            if others or exc.details["writeConcernErrors"]:
                raise
        new = {"_id": {"$in": [d["_id"] for d in documents]}, "created_at": None}
        inserted = (await self._tasks.update_many(new, [{"$set": {"created_at": NOW}}])).modified_count
        if inserted:
            self._signals.send(Signal.TASKS)
        return inserted

    # ------------------------------------------------------------------ claim

    # 13 parameters: one query: each narrows what may be claimed
    async def claim_slots(
        self,
        worker: str,
        *,
        policy: str,
        split: str,
        lease_s: float,
        seq_limit: int | None,
        served_versions: Sequence[int] = (),
        max_failures: int,
        without: Sequence[Unplayable] = (),
        unconfirmed: bool = False,
        rules: int | None = None,
        of_rules: Sequence[int] | None = None,
        full_environments: Sequence[str] = (),
        most: int = 1,
    ) -> list[Claim]:
        """Lease free slots, or ones with an expired lease, of one task: `most`, or all that it has. []: no task has one.

        Open groups come first, those whose slots have been free for longest, then tasks that were never opened, by `seq`.
        `seq_limit` is the admission gate (None: no gate). Tasks bound to a version are offered only while an engine serves
        it. A slot whose lease expired or that failed `max_failures` times becomes failed instead of being leased.
        `without`, `full_environments`: skip these. `unconfirmed`: its agent is told later. `rules`: the number of the rules of
        a group that this opens; `of_rules`: those of the groups that are open already, None: any.
        """
        where: Document = {"policy": policy, "split": split, "at_version": {"$in": [None, *served_versions]}}
        if seq_limit is not None:
            where["seq"] = {"$lt": seq_limit}
        where |= CLAIMABLE_NOW | playable_without(without, full_environments) | opened_by(of_rules)
        change = claim_pipeline(worker, lease_s, max_failures, most, unconfirmed=unconfirmed, rules=rules)
        while True:
            document = await with_index("free", partial(self._spoilt.update, where, change, order=CLAIM_ORDER))
            if document is None:
                return []
            task = await self._spoilt.read(document)
            if task is not None and (claims := claims_of(task)):
                return claims  # else it had only exhausted slots, which are failed now; try the next

    async def renew_leases(
        self, claims: Sequence[Claim], lease_s: float, worker: str | None = None, *, if_own: bool = False
    ) -> list[Claim]:
        """Renew in one bulk update; returns the claims whose lease was lost. `worker`: a gateway that has
        them from now on, and whose agents know of them; `if_own`: of those alone that it has."""
        if not claims:
            return []
        renewed = {
            "free_at": after(lease_s),
            **({} if worker is None else {"worker": literal(worker)}),
        }
        renewals = [
            UpdateOne(
                holding(c, worker if if_own else None),
                [
                    {"$set": {"slots": merge_slot(is_slot(c.traj_id), renewed, without="unconfirmed")}},
                    {"$set": {"free_at": LEAST_FREE_AT}},
                ],
            )
            for c in claims
        ]
        refused: set[int] = set()
        try:
            if (await self._tasks.bulk_write(renewals, ordered=False)).matched_count == len(claims):
                return []
        except BulkWriteError as exc:  # the update fails on a malformed task: its lease counts as lost
            refused = {error["index"] for error in exc.details["writeErrors"]}
            if not refused:
                raise
        held = await self._held(claims)
        return [c for index, c in enumerate(claims) if index in refused or c.record_id not in held]

    async def _held(self, claims: Sequence[Claim]) -> set[str]:
        """The records of those of these claims that hold their slots."""
        held: set[str] = set()
        for first in range(0, len(claims), TASKS_AT_ONCE):
            ids = {claim.task.id for claim in claims[first : first + TASKS_AT_ONCE]}
            async for task in self._tasks.find({"_id": {"$in": list(ids)}}, LEASED_SLOTS):
                held |= {record_id(task["_id"], *slot) for slot in task["leased"]}
        return held

    # ------------------------------------------------------------------ the end of an episode

    async def finish_slot(self, claim: Claim, score: float, group_scorers: Sequence[WeightedScorer] = ()) -> bool:
        """Store the episode's score, and which scorers will score it with its group. Returns True if the group is complete
        with it. Raises LeaseLost."""
        change = {"status": SlotStatus.SCORED.value, "score": score, "record_id": claim.record_id, "error": None}
        change |= of_group(group_scorers)
        return await self._ends.score(claim, literals(change))

    async def await_feedback(
        self,
        claim: Claim,
        deadline_s: float,
        *,
        score_without: float | None,
        group_scorers: Sequence[WeightedScorer] = (),
    ) -> bool:
        """End the lease of an episode whose score comes later, within `deadline_s`; without feedback it gets `score_without`,
        or fails (None). Returns True if the group has ended: only if this is a repetition. Raises LeaseLost."""
        change = {
            "status": SlotStatus.WAITING.value,
            "free_at": after(deadline_s),
            "score_without_feedback": literal(score_without),
            "record_id": literal(claim.record_id),
            "error": None,
            **literals(of_group(group_scorers)),
        }
        return await self._ends.leave(claim, change, ends=PLAYED_TO_THE_END)

    async def retry_slot(
        self, claim: Claim, error: str, *, delay_s: float, max_failures: int, bugs_at_most: int | None = None
    ) -> bool:
        """Infrastructure failure: reopen after `delay_s`, or fail. Returns True if it ended the group. Raises LeaseLost.

        `bugs_at_most`: it met a bug, and so many of the task's episodes set the task aside.
        """
        change = reopened(claim, error, delay_s, max_failures)
        more = () if bugs_at_most is None else bug_met(error, bugs_at_most)
        return await self._ends.leave(claim, change, ends=[SlotStatus.OPEN, SlotStatus.FAILED], more=more)

    async def release_slot(self, claim: Claim, delay_s: float = 0.0) -> bool:
        """Release the slot without counting a failure (draining); free from `delay_s` on. Raises LeaseLost."""
        change = {
            "status": SlotStatus.OPEN.value,
            "free_at": after(delay_s) if delay_s else NOW,
            "worker": None,
            "record_id": literal(claim.record_id),
        }
        return await self._ends.leave(claim, change, ends=[SlotStatus.OPEN])

    async def is_played_by(self, claim: Claim) -> bool:
        """Whether this attempt, and no other, gave the slot its score, or waits for it."""
        return await self._ends.ended_before(claim, PLAYED_TO_THE_END) is not None

    # ------------------------------------------------------------------ settlement

    async def claim_settlement(
        self,
        worker: str,
        *,
        policy: str,
        lease_s: float,
        left: Sequence[str] | None = None,
        rules: Sequence[int] | None = None,
        completed_s: float = 0.0,
    ) -> Task | None:
        """Lease a completed group for settlement; after a crash of the settler its lease expires and another takes over.
        `left`: group scorers whose groups are left to others; None: all groups that group scorers have to score.
        `rules`: only groups that are settled by one of these; None: by any. `completed_s`: only those complete for so long."""
        due, leased = due_for_settlement(policy, left, rules, completed_s), leased_for_settlement(worker, lease_s)
        while True:
            document = await self._tasks.find_one_and_update(due, leased, return_document=ReturnDocument.AFTER)
            if document is None:
                return None
            task = await self._spoilt.read(document)
            if task is not None:
                return task

    async def finish_settlement(
        self, task: Task, outcome: str, *, abandoned: bool, data_of: Sequence[str] = (), skips: bool = False
    ) -> None:
        """Write the group's outcome and the policies that got training data. `skips`: `skip_next_epoch` before it, in the same
        command, so that a takeover repeats it if this settler exits in between."""
        finish = UpdateOne(
            {"_id": task.id, "status": TaskStatus.COMPLETED}, settled(outcome, data_of, abandoned=abandoned)
        )
        change = skipping(task) if skips else None
        await self._finishes.ask([finish] if change is None else [UpdateOne(*change), finish])
        self._signals.send(Signal.DATA)

    # ------------------------------------------------------------------ the curriculum

    async def skip_next_epoch(self, task: Task) -> bool:
        """Skip the next epoch's task if this group's pass rate is outside its band; returns True if it was skipped now.

        The band is [min_pass_rate, max_pass_rate] of the next task's payload, the rate is that of this group's scored slots.
        A task that was already opened is played, and so is one whose predecessor was skipped or has no score: a task
        skipped in one epoch is considered again in the one after.
        """
        change = skipping(task)
        return change is not None and (await self._tasks.update_one(*change)).modified_count == 1

    async def ended_of(self, ids: Sequence[str]) -> list[Task]:
        """Tasks among `ids` with every slot scored or failed."""
        cursor = self._tasks.find({"_id": {"$in": list(ids)}, "status": {"$in": PLAYED}})
        return await readable(Task, cursor)

    # ------------------------------------------------------------------ questions

    async def first_unended(self, split: str) -> dict[str, int]:
        """{policy: least `seq` of its tasks that may still become data: not settled, abandoned or skipped}."""
        first_seqs = {}
        for policy in await self._tasks.distinct("policy"):  # of any split: answered by an index alone
            where = {"policy": policy, "split": split, "status": {"$in": UNENDED}}
            first = await self._tasks.find_one(where, {"seq": 1}, sort=[("seq", ASCENDING)])
            if first is not None:
                first_seqs[str(policy)] = int(first["seq"])
        return first_seqs

    async def get(self, task_id: str) -> Task | None:
        document = await self._tasks.find_one({"_id": task_id})
        return None if document is None else Task.from_mongo(document)

    async def count_by_status(self, split: str | None = None, most: int | None = None) -> dict[str, dict[str, int]]:
        """{split: {status: tasks}}. `most`: a larger number stands for more than that; None: all are counted."""
        where = {} if split is None else {"split": split}
        counts: dict[str, dict[str, int]] = {}
        for of, n in await count_by(self._tasks, "by status", ("policy", "split", "status"), where, most):
            of_split = counts.setdefault(of["split"], {})
            of_split[of["status"]] = of_split.get(of["status"], 0) + n
        return counts

    async def count_slots(self, split: str | None = None) -> dict[str, int]:
        """{slot status: slots} over all opened tasks."""
        match: Document = {"status": {"$nin": NEVER_OPENED}} | ({} if split is None else {"split": split})
        cursor = await self._tasks.aggregate(
            [
                {"$match": match},
                {"$unwind": "$slots"},
                {"$group": {"_id": "$slots.status", "n": {"$sum": 1}, "failures": {"$sum": "$slots.failures"}}},
            ]
        )
        rows = await cursor.to_list()
        return {row["_id"]: row["n"] for row in rows} | {"failures": sum(row["failures"] for row in rows)}

    async def count_failures(self, split: str | None = None) -> tuple[int, int]:
        """(attempts with an infrastructure failure, slots that are failed), of a split; None: of all but the forks."""
        failed: Document = {"$cond": [{"$eq": ["$slots.status", SlotStatus.FAILED.value]}, 1, 0]}
        total: Document = {"_id": None, "attempts": {"$sum": "$slots.failures"}, "slots": {"$sum": failed}}
        counted = HAS_FAILURES | {"split": {"$ne": FORK_SPLIT} if split is None else split}
        stages: list[Document] = [{"$match": counted}, {"$unwind": "$slots"}, {"$group": total}]
        rows = await (await with_index("failures", lambda by: self._tasks.aggregate(stages, **by))).to_list()
        return (int(rows[0]["attempts"]), int(rows[0]["slots"])) if rows else (0, 0)
