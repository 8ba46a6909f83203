"""Verbs on the run's rules: a number is inserted once and never changes."""

from typing import Any

from pymongo import DESCENDING
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents import Task
from shared.documents.rules import RunRules, rules_of
from shared.errors import DataError
from shared.store.indexes import add_index
from shared.store.malformed import readable
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages
from shared.store.signals import Signal, Signals

Document = dict[str, Any]


@survives_outages
class RuleVerbs:
    def __init__(self, database: AsyncDatabase[Document], signals: Signals) -> None:
        self._signals = signals
        self._rules = database[RunRules.collection]
        self._of_tasks: dict[str, RunRules] = {}  # by id: a number never changes, and a run has few

    async def ensure_indexes(self) -> None:
        await add_index(self._rules, [("policy", 1), ("number", 1)], name="newest")

    async def add(self, rules: RunRules) -> RunRules:
        """Write a number; returns what stands under it now: another process may have been first."""
        await self._rules.update_one({"_id": rules.id}, insert_once(rules.to_mongo(), time="since"), upsert=True)
        self._signals.send(Signal.RUN)
        stored = await self._rules.find_one({"_id": rules.id})
        if stored is None:
            raise DataError(f"{RunRules.collection} {rules.id}: it was written and is gone")
        return RunRules.from_mongo(stored)

    async def all(self, policy: str) -> list[RunRules]:
        """Every number of a policy, the newest first. Unreadable ones are left out, and logged."""
        return await readable(RunRules, self._rules.find({"policy": policy}).sort([("number", DESCENDING)]))

    async def policies(self) -> list[str]:
        """Those with rules."""
        return sorted(await self._rules.distinct("policy"))

    async def of_task(self, task: Task) -> RunRules:
        """The rules by which the group is settled; a number is read once. Raises DataError."""
        identity = rules_of(task)
        if identity not in self._of_tasks:
            stored = await self._rules.find_one({"_id": identity})
            if stored is None:
                raise DataError(
                    f"task {task.id}: its rules, {RunRules.collection} {identity}, are gone; restore the document"
                )
            self._of_tasks[identity] = RunRules.from_mongo(stored)
        return self._of_tasks[identity]
