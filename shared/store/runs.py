"""Verbs on the run's document and on its workers."""

from typing import Any, Literal

from pymongo import ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.base import SCHEMA_VERSION
from shared.documents.run import Admission, Run, SavedCheckpoint, TrainerEnd, Worker
from shared.documents.states import RunState
from shared.documents.step_cost import StepCost
from shared.errors import DataError, LeaseLost
from shared.store.liveness import is_live
from shared.store.malformed import read_or_log, readable
from shared.store.pipelines import NOW, literal, literals
from shared.store.retry import survives_outages
from shared.store.signals import Signal, Signals

Document = dict[str, Any]
RUN_ID = "run"
STOPPED = "stopped"  # `doing` of a worker that has stopped
FAILED = "failed: "  # beginning of `doing` of a worker that an error ended; the error follows
IS_LIVE = "is_live"  # computed
LEFT = rf"^({STOPPED}$|{FAILED})"


def has_left(doing: str) -> bool:
    """Whether a worker has written that it ended."""
    return doing == STOPPED or doing.startswith(FAILED)


def _names_in(field: str) -> Document:
    """The policies with an entry in `field`; empty if the field is malformed."""
    entries = {"$cond": [{"$eq": [{"$type": field}, "object"]}, field, literal({})]}
    return {"$map": {"input": {"$objectToArray": entries}, "in": "$$this.k"}}


# An unpaused run has ended when every policy that had a trainer has the end of its last one.
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
    def __init__(self, database: AsyncDatabase[Document], signals: Signals) -> None:
        self._signals = signals
        self._runs: AsyncCollection[Document] = database["runs"]
        self._name = database.name

    async def ensure(self) -> Run:
        """Return the run's document; create it if missing. Raises DataError if another schema version wrote it."""
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
        """Return the run's document, which must exist. Raises DataError if missing or of another schema version."""
        document = await self._runs.find_one({"_id": RUN_ID})
        if document is None:
            raise DataError(f"run {self._name}: no run document; nothing was ever recorded under this name")
        return self._checked(document)

    def _checked(self, document: Document) -> Run:
        if document["schema_version"] != SCHEMA_VERSION:
            raise DataError(
                f"run {self._name}: written with schema {document['schema_version']}, this program supports "
                f"{SCHEMA_VERSION}; use the version that wrote it, or start a new run"
            )
        return Run.from_mongo(document)

    async def get(self) -> Run | None:
        document = await self._runs.find_one({"_id": RUN_ID})
        return None if document is None else Run.from_mongo(document)

    async def set_state(self, state: Literal[RunState.PAUSED, RunState.RUNNING]) -> bool:
        """Pause or resume; returns False if nothing changed. After a pause, a run whose trainers have ended is ENDED."""
        then = state.value if state is RunState.PAUSED else GOES_ON
        done = await self._runs.update_one({"_id": RUN_ID}, [{"$set": {"state": then}}])
        self._signals.send(Signal.RUN)
        return done.modified_count == 1

    async def is_paused(self) -> bool:
        return await self._runs.find_one({"_id": RUN_ID, "state": RunState.PAUSED.value}, {"_id": 1}) is not None

    async def note_settings(self, kind: str, settings: str) -> None:
        """The last start of a kind of service has these settings, by their id."""
        await self._runs.update_one({"_id": RUN_ID}, [{"$set": {f"settings.{kind}": literal(settings)}}])

    async def note_step_cost(self, policy: str, cost: StepCost) -> None:
        """What a step of the policy costs, as the launcher knows it now."""
        await self._runs.update_one({"_id": RUN_ID}, [{"$set": {f"step_costs.{policy}": literal(cost.to_mongo())}}])

    async def start_trainer(
        self,
        policy: str,
        admission: Admission,
        *,
        seen: Run | None = None,
        checkpoint: SavedCheckpoint | None = None,
        settings: str | None = None,
    ) -> int:
        """At a trainer's start: store its budget; returns its generation, the fence of its claims and commits.

        `seen`: the run when the trainer decided to begin. Raises LeaseLost if another has begun or saved a checkpoint since.
        `checkpoint`: its starting point; None: the run's initial weights. `settings`: their id.
        """
        run = seen or await self.read()
        began_from = checkpoint.step if checkpoint else 0
        before, saved = run.trainer_generations.get(policy), run.checkpoints.get(policy)
        updated = await self._runs.find_one_and_update(
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
                        **({f"settings.trainer-{policy}": literal(settings)} if settings is not None else {}),
                    }
                },
                {"$set": {"state": PAUSED_OR_GOES_ON}},
            ],
            {"_id": 1},
        )
        if updated is None:
            raise LeaseLost(
                f"policy {policy}: another trainer started, or saved a checkpoint, at the same time; stop it, or let it "
                "finish, and start again"
            )
        self._signals.send(Signal.RUN)
        return (before or 0) + 1

    async def note_checkpoint(self, policy: str, trainer_generation: int, checkpoint: SavedCheckpoint) -> None:
        """Record a checkpoint that was saved to disk. Raises LeaseLost if another trainer has started."""
        newer = {"$not": {"$gte": checkpoint.step}}
        mine: Document = {"_id": RUN_ID, f"trainer_generations.{policy}": trainer_generation}
        await self._runs.update_one(
            {**mine, f"checkpoints.{policy}.step": newer},
            [{"$set": {f"checkpoints.{policy}": literal(checkpoint.to_mongo())}}],
        )
        if not await self.is_current_trainer(policy, trainer_generation):
            raise LeaseLost(f"policy {policy}: another trainer has started; this one ends")

    async def end_trainer(self, policy: str, end: TrainerEnd) -> None:
        """A trainer's last write. The run ends when every policy's trainer has. No effect if a newer generation exists."""
        fields = {**literals(end.model_dump(exclude={"ended_at"})), "ended_at": NOW}
        await self._runs.update_one(
            {"_id": RUN_ID, f"trainer_generations.{policy}": end.trainer_generation, f"ends.{policy}": None},
            [{"$set": {f"ends.{policy}": fields}}, {"$set": {"state": PAUSED_OR_GOES_ON}}],
        )
        self._signals.send(Signal.RUN)

    async def is_current_trainer(self, policy: str, trainer_generation: int) -> bool:
        return (
            await self._runs.find_one({"_id": RUN_ID, f"trainer_generations.{policy}": trainer_generation}, {"_id": 1})
            is not None
        )


@survives_outages
class WorkerVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._workers: AsyncCollection[Document] = database["workers"]
        self.last: Worker | None = None  # what this process said of itself last, for its own metrics page

    async def heartbeat(self, worker: Worker) -> None:
        self.last = worker
        values = worker.to_mongo()
        for name in ("_id", "started_at", "heartbeat"):
            del values[name]
        await self._workers.update_one(
            {"_id": worker.id},
            [{"$set": {**literals(values), "heartbeat": NOW, "started_at": {"$ifNull": ["$started_at", NOW]}}}],
            upsert=True,
        )

    async def leave(self, worker_id: str, error: str | None = None) -> None:
        """Mark a worker as stopped, or as failed with `error`; a killed one only stops its heartbeat."""
        doing = STOPPED if error is None else f"{FAILED}{error}"
        await self._workers.update_one({"_id": worker_id}, {"$set": {"doing": doing}})

    async def all(self) -> list[Worker]:
        return await readable(Worker, self._workers.find().sort([("kind", 1), ("started_at", 1)]))

    async def all_and_live(self) -> tuple[list[Worker], set[str]]:
        """All workers, and the ids of those that `live` returns, by one command."""
        cursor = await self._workers.aggregate(
            [{"$sort": {"kind": 1, "started_at": 1}}, {"$set": {IS_LIVE: is_live()}}]
        )
        documents = await cursor.to_list()
        live = {one["_id"] for one in documents if one.pop(IS_LIVE) and not has_left(str(one.get("doing", "")))}
        workers = [worker for one in documents if (worker := read_or_log(Worker, one)) is not None]
        return workers, live & {worker.id for worker in workers}

    async def live(self) -> list[Worker]:
        """Workers with a current heartbeat that have not stopped."""
        fresh = {"$expr": is_live(), "doing": {"$not": {"$regex": LEFT}}}
        return await readable(Worker, self._workers.find(fresh).sort([("kind", 1), ("_id", 1)]))
