"""Runs of which something is missing, by name: each makes itself in an empty database that has a run's document."""

from collections.abc import Awaitable, Callable

from shared.documents.fork import ForkOrigin
from shared.documents.run import Admission, Worker
from shared.store import Store
from tests.shared.builders import claim, import_tasks, make_task
from tests.shared.episodes import play, whole_run
from tests.tandem.commands.commands import RECORD

GROUP = "main:train:0:t0"
TURN = f"{RECORD}:1"
FORK = f"main:fork:0:{TURN}"
COLLECTIONS = (
    *(
        "tasks",
        "records",
        "record_data",
        "dispatched_sampling_tasks",
        "trained_steps",
        "trainer_logprobs",
        "policy_versions",
        "tool_schemas",
    ),
    *("workers", "inference_services", "settings"),
)
Damage = Callable[[Store], Awaitable[object]]


async def whole(store: Store) -> None:
    await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=0, num_steps=9))
    await whole_run(store)
    await store.ensure_indexes()


async def no_step(store: Store) -> None:
    await store.runs.ensure()
    await import_tasks(store, 3)


async def crashed(store: Store) -> None:
    await whole(store)
    await store.workers.heartbeat(Worker(id="trainer:main:h:1", kind="trainer", host="h", pid=1, stats={"step": 1}))
    await store.workers.leave("trainer:main:h:1", "OutOfMemoryError: 80 GB")


async def without_indexes(store: Store) -> None:
    """As documents that were inserted into another database, one by one."""
    await whole(store)
    for name in await store.database.list_collection_names():
        await store.database[name].drop_indexes()


async def forked(store: Store) -> None:
    """A turn whose two other continuations were played and settled, without data."""
    await whole(store)
    task = make_task(0, split="fork", tid=TURN)
    fork = ForkOrigin(dispatch=TURN, sampling_params={"temperature": 1.0})
    await store.tasks.insert_new([task.model_copy(update={"payload": task.payload.model_copy(update={"fork": fork})})])
    while (held := await claim(store, split="fork")) is not None:
        await play(store, held, float(held.traj_id))
    settled = await store.tasks.claim_settlement("s", policy="main", lease_s=60)
    assert settled is not None
    await store.tasks.finish_settlement(settled, "a fork", abandoned=False, data_of=[])


def without(collection: str, **where: str) -> Damage:
    """A whole run, less the documents that fit; all of them without a condition."""

    async def damage(store: Store) -> None:
        await whole(store)
        await store.database[collection].delete_many(where)

    return damage


def forked_without(collection: str, **where: str) -> Damage:
    async def damage(store: Store) -> None:
        await forked(store)
        found = await store.database[collection].delete_many(where)
        assert found.deleted_count

    return damage


RUNS: dict[str, Damage] = {
    "whole": whole,
    "no step": no_step,
    "only its document": lambda store: store.runs.ensure(),
    "crashed": crashed,
    "without indexes": without_indexes,
    **{f"without {name}": without(name) for name in COLLECTIONS},
    "without the record of its turns": without("records", _id=RECORD),
    "without the task of its records": without("tasks", _id=GROUP),
    "without the data of its step": without("record_data", task=GROUP),
    "without the first turn": without("dispatched_sampling_tasks", _id=f"{RECORD}:0"),
    "without a turn of the middle": without("dispatched_sampling_tasks", _id=TURN),
    "forked": forked,
    "forked, without the turn": forked_without("dispatched_sampling_tasks", _id=TURN),
    "forked, without the record": forked_without("records", _id=RECORD),
    "forked, without the task": forked_without("tasks", _id=GROUP),
    "forked, without its own turns": forked_without("dispatched_sampling_tasks", record=f"{FORK}:0:1"),
    "forked, without its task": forked_without("tasks", _id=FORK),
}
