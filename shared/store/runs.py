"""Verbs on the run's own document and on its workers."""

from collections.abc import Mapping
from typing import Any, Literal

from pymongo import ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.base import SCHEMA_VERSION
from shared.documents.run import Admission, Run, SavedCheckpoint, TrainerEnd, Worker
from shared.documents.states import RunState
from shared.errors import DataError, LeaseLost
from shared.store.liveness import heard_of
from shared.store.malformed import readable
from shared.store.pipelines import NOW, literal, literals
from shared.store.retry import survives_outages

Document = dict[str, Any]
RUN_ID = "run"
STOPPED = "stopped"  # what a worker is doing that has left


def _names_in(field: str) -> Document:
    """The policies that have an entry in `field`; none where a person has spoilt it."""
    entries = {"$cond": [{"$eq": [{"$type": field}, "object"]}, field, literal({})]}
    return {"$map": {"input": {"$objectToArray": entries}, "in": "$$this.k"}}


# Of a run that no person has paused: ended where every policy that ever had a trainer has an end of the last one.
ALL_ENDED = {
    "$and": [
        {"$ne": [_names_in("$trainer_generations"), []]},
        {"$setIsSubset": [_names_in("$trainer_generations"), _names_in("$ends")]},
    ]
}
GOES_ON = {"$cond": [ALL_ENDED, RunState.ENDED.value, RunState.RUNNING.value]}
PAUSED_OR_GOES_ON = {"$cond": [{"$eq": ["$state", RunState.PAUSED.value]}, "$state", GOES_ON]}


@survives_outages
class RunVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._runs: AsyncCollection[Document] = database["runs"]
        self._name = database.name

    async def ensure(self) -> Run:
        """The run's document, made if it is not there. Raises DataError when another schema version wrote it."""
        new = Run(id=RUN_ID, name=self._name).to_mongo()
        del new["_id"], new["created_at"]
        document = await self._runs.find_one_and_update(
            {"_id": RUN_ID},
            [{"$replaceWith": {"$mergeObjects": [{**literals(new), "created_at": NOW}, "$$ROOT"]}}],
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        assert document is not None  # upsert
        return self._checked(document)

    async def read(self) -> Run:
        """The run's document, which must be there. Raises DataError as `ensure` does."""
        document = await self._runs.find_one({"_id": RUN_ID})
        if document is None:
            raise DataError(f"run {self._name}: no run document; nothing was ever recorded under this name")
        return self._checked(document)

    def _checked(self, document: Document) -> Run:
        if document["schema_version"] != SCHEMA_VERSION:
            raise DataError(
                f"run {self._name}: written with schema {document['schema_version']}, this program knows "
                f"{SCHEMA_VERSION}; use the version that wrote it, or start a new run"
            )
        return Run.from_mongo(document)

    async def get(self) -> Run | None:
        document = await self._runs.find_one({"_id": RUN_ID})
        return None if document is None else Run.from_mongo(document)

    async def set_state(self, state: Literal[RunState.PAUSED, RunState.RUNNING]) -> bool:
        """False: it was so before. A run whose trainers have ended is no more than that when its pause is over."""
        then = state.value if state is RunState.PAUSED else GOES_ON
        done = await self._runs.update_one({"_id": RUN_ID}, [{"$set": {"state": then}}])
        return done.modified_count == 1

    async def is_paused(self) -> bool:
        return await self._runs.find_one({"_id": RUN_ID, "state": RunState.PAUSED.value}, {"_id": 1}) is not None

    async def save_config(self, kind: str, values: Mapping[str, Any]) -> None:
        """The resolved configuration of a kind of service, for people who ask later what ran."""
        await self._runs.update_one({"_id": RUN_ID}, [{"$set": {f"configs.{kind}": literal(dict(values))}}])

    async def start_trainer(
        self,
        policy: str,
        admission: Admission,
        *,
        seen: Run | None = None,
        checkpoint: SavedCheckpoint | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> int:
        """A trainer begins: returns its trainer generation, the fence of its claims and commits, and declares its budget.

        `seen`: the run as it was when the trainer decided to begin. Raises LeaseLost where another has begun or saved since.
        `checkpoint`: what it begins from; None: the run's own weights. `config`: its own, resolved.
        """
        run = seen or await self.read()
        began_from = checkpoint.step if checkpoint else 0
        before, saved = run.trainer_generations.get(policy), run.checkpoints.get(policy)
        found = await self._runs.find_one_and_update(
            {
                "_id": RUN_ID,
                f"trainer_generations.{policy}": before,
                f"checkpoints.{policy}": saved and saved.to_mongo(),
            },
            [
                {
                    "$set": {
                        f"trainer_generations.{policy}": (before or 0) + 1,
                        f"admission.{policy}": literal(admission.to_mongo()),
                        f"starts.{policy}": {"$concatArrays": [{"$ifNull": [f"$starts.{policy}", []]}, [began_from]]},
                        f"checkpoints.{policy}": literal(checkpoint.to_mongo()) if checkpoint else "$$REMOVE",
                        f"ends.{policy}": "$$REMOVE",
                        **({f"configs.trainer-{policy}": literal(dict(config))} if config is not None else {}),
                    }
                },
                {"$set": {"state": PAUSED_OR_GOES_ON}},
            ],
            {"_id": 1},
        )
        if found is None:
            raise LeaseLost(
                f"policy {policy}: another trainer has begun, or saved a checkpoint, in the same moment; end it, or let it "
                "train, and start again"
            )
        return (before or 0) + 1

    async def note_checkpoint(self, policy: str, trainer_generation: int, checkpoint: SavedCheckpoint) -> None:
        """It is on the disk. Raises LeaseLost when another trainer has started."""
        newer = {"$not": {"$gte": checkpoint.step}}
        mine: Document = {"_id": RUN_ID, f"trainer_generations.{policy}": trainer_generation}
        await self._runs.update_one(
            {**mine, f"checkpoints.{policy}.step": newer},
            [{"$set": {f"checkpoints.{policy}": literal(checkpoint.to_mongo())}}],
        )
        if not await self.is_current_trainer(policy, trainer_generation):
            raise LeaseLost(f"policy {policy}: another trainer has started; this one ends")

    async def end_trainer(self, policy: str, end: TrainerEnd) -> None:
        """A trainer's last act. The run has ended where every policy's has; nothing changes where another start has begun."""
        told = {**literals(end.model_dump(exclude={"ended_at"})), "ended_at": NOW}
        await self._runs.update_one(
            {"_id": RUN_ID, f"trainer_generations.{policy}": end.trainer_generation, f"ends.{policy}": None},
            [{"$set": {f"ends.{policy}": told}}, {"$set": {"state": PAUSED_OR_GOES_ON}}],
        )

    async def is_current_trainer(self, policy: str, trainer_generation: int) -> bool:
        return (
            await self._runs.find_one({"_id": RUN_ID, f"trainer_generations.{policy}": trainer_generation}, {"_id": 1})
            is not None
        )


@survives_outages
class WorkerVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._workers: AsyncCollection[Document] = database["workers"]

    async def heartbeat(self, worker: Worker) -> None:
        values = worker.to_mongo()
        for name in ("_id", "started_at", "heartbeat"):
            del values[name]
        await self._workers.update_one(
            {"_id": worker.id},
            [{"$set": {**literals(values), "heartbeat": NOW, "started_at": {"$ifNull": ["$started_at", NOW]}}}],
            upsert=True,
        )

    async def leave(self, worker_id: str) -> None:
        """It ends of its own will; one that is killed is only not heard of any more."""
        await self._workers.update_one({"_id": worker_id}, {"$set": {"doing": STOPPED}})

    async def all(self) -> list[Worker]:
        return await readable(Worker, self._workers.find().sort([("kind", 1), ("started_at", 1)]))

    async def live(self) -> list[Worker]:
        """Those that have not left and are heard of."""
        fresh = {"$expr": {"$and": [heard_of(), {"$ne": ["$doing", STOPPED]}]}}
        return await readable(Worker, self._workers.find(fresh).sort([("kind", 1), ("_id", 1)]))
