"""Read-only queries of the audit on optimizer steps: what trainers reported, and the marks on data and records."""

from collections.abc import Sequence
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.run import TrainedStep
from shared.store.stored import IDS_AT_ONCE

Document = dict[str, Any]


class StoredSteps:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._records = database["records"]
        self._data = database["record_data"]
        self._steps = database["trained_steps"]

    async def step_numbers(self, policy: str, after: int | None = None) -> list[int]:
        """Steps that the policy's trainers reported, and that data has the mark of, in order; `after`: only later ones. Without
        it the marks of other policies count too, since those of all are in one index."""
        where: Document = {"policy": policy} | ({} if after is None else {"step": {"$gt": after}})
        reported = self._steps.find(where, {"_id": 0, "step": 1}).batch_size(IDS_AT_ONCE)
        marked = {} if after is None else {"policy": policy, "last_trained_step": {"$gt": after}}
        numbers = {document["step"] async for document in reported}
        numbers |= set(await self._data.distinct("trained_steps", marked))
        least = float("-inf") if after is None else after
        return sorted(int(number) for number in numbers if isinstance(number, int) and number > least)

    async def last_reported(self, policy: str, trainer_generation: int) -> int | None:
        """The last step that this trainer reported."""
        where = {"policy": policy, "trainer_generation": trainer_generation}
        last = await self._steps.find_one(where, {"step": 1}, sort=[("step", -1)])
        return None if last is None else int(last["step"])

    async def tasks_trained_after(self, policy: str, step: int) -> set[str]:
        """Tasks that a later step trained, by its report, or by a mark on data or record; also those of undone steps."""
        reported = self._steps.find({"policy": policy, "step": {"$gt": step}}, {"groups": 1})
        tasks = {task async for document in reported for task, _ in document["groups"]}
        for marked in (self._data, self._records):
            cursor = marked.find({"policy": policy, "last_trained_step": {"$gt": step}}, {"_id": 0, "task": 1})
            async for document in cursor.batch_size(IDS_AT_ONCE):
                if isinstance(document.get("task"), str):
                    tasks.add(document["task"])
        return tasks

    async def steps_that_trained(self, policy: str, tasks: Sequence[str]) -> list[TrainedStep]:
        """All reports that name one of these tasks, in order; the server reads every report of the policy."""
        named: Document = {"$elemMatch": {"$elemMatch": {"$in": list(tasks)}}}
        cursor = self._steps.find({"policy": policy, "groups": named}, {"metrics": 0}).sort([("step", 1), ("_id", 1)])
        return [TrainedStep.from_mongo(document) async for document in cursor]

    async def steps(self, policy: str, first: int, last: int) -> list[TrainedStep]:
        """What the trainers reported of steps `first` to `last`, also of those that a resume has undone."""
        where: Document = {"policy": policy, "step": {"$gte": first, "$lte": last}}
        cursor = self._steps.find(where, {"metrics": 0}).sort([("step", 1), ("_id", 1)])
        return [TrainedStep.from_mongo(document) async for document in cursor]

    async def marked_groups(self, policy: str, first: int, last: int) -> dict[int, dict[str, int]]:
        """{step: {task: number of its records with the step's mark}} for steps `first` to `last`."""
        within: Document = {"$gte": first, "$lte": last}
        stages: list[Document] = [
            {"$match": {"trained_steps": {"$elemMatch": within}, "policy": policy, "trained_count": {"$gt": 0}}},
            {"$project": {"_id": 0, "trained_steps": 1, "task": 1}},
            {"$unwind": "$trained_steps"},
            {"$match": {"trained_steps": within}},
            {"$group": {"_id": {"step": "$trained_steps", "task": "$task"}, "n": {"$sum": 1}}},
        ]
        marked: dict[int, dict[str, int]] = {}
        async for row in await self._data.aggregate(stages, batchSize=IDS_AT_ONCE):
            task = row["_id"].get("task")
            marked.setdefault(int(row["_id"]["step"]), {})[task if isinstance(task, str) else repr(task)] = row["n"]
        return marked
