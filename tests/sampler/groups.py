"""A completed group with a case for every rule, written by the store's own verbs; and all its documents."""

from typing import Any

from shared.documents import Task
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.builders import play_episode
from tests.shared.builders import claim, import_tasks

EVERY_RULE = {
    "min_turns": 2,
    "reserve_context_error_count": 2,
    "balance_sample": True,
    "zero_variance_tolerance": 0.1,
    "mask_overlong": True,
    "efficient_rewarding": True,
    "advantage": "gigpo",
    "turn_discount": 0.95,
    "adv_scaling": 2.0,
}
COLLECTIONS = ("tasks", "records", "dispatched_sampling_tasks", "record_data")


async def completed_group(store: Store, scores: list[float | None]) -> Task:
    """One task; None is a slot that failed."""
    await import_tasks(store, 1, num_generations=len(scores))
    for score in scores:
        got = await claim(store)
        if score is None:
            await store.records.start(got, "w")
            await store.records.move(got.record_id, RecordStatus.FAILED, {"error": "engine down"})
            await store.tasks.retry_slot(got, "engine down", delay_s=0, max_failures=1)
        else:
            await play_episode(store, got, score)
    return await the_task(store)


async def varied_group(store: Store) -> Task:
    """Ten slots: one lost by a worker and then failed, correct ones of 1 to 4 turns, over-long and wrong ones."""
    await import_tasks(store, 1, num_generations=10)
    lost = await claim(store, "dies", lease_s=0.0)
    await store.records.start(lost, "dies")
    failed = await claim(store)
    await store.records.start(failed, "w")
    await store.records.move(failed.record_id, RecordStatus.FAILED, {"error": "engine down"})
    await store.tasks.retry_slot(failed, "engine down", delay_s=0, max_failures=1)
    for score, turns, limit in (
        *((1.0, 1, None), (1.0, 2, None), (1.0, 4, None), (1.0, 3, None)),
        *((0.0, 2, None), (0.0, 3, Termination.TURNS_LIMIT), (0.0, 3, Termination.LENGTH_LIMIT)),
        *((0.0, 4, Termination.LENGTH_LIMIT), (0.25, 1, None)),
    ):
        await play_episode(
            store,
            await claim(store),
            score,
            turns=turns,
            termination=limit or Termination.ANSWERED,
            turn_scores=[0.25, None, -0.5][: turns - 1],
            told=["start", "a wall", "a door" if score else "a wall", "the end"],
        )
    return await the_task(store)


async def the_task(store: Store) -> Task:
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    assert task.status == "completed"
    return task


async def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Every document of the four collections, as stored."""
    return {name: await store.database[name].find().sort("_id", 1).to_list() for name in COLLECTIONS}


def timeless(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The documents without the settlement's time and worker."""
    times = {"tasks": {"settled_at", "settler", "free_at"}, "record_data": {"created_at"}}
    return {
        name: [{k: v for k, v in d.items() if k not in times.get(name, set())} for d in documents]
        for name, documents in found.items()
    }


async def restore(store: Store, found: dict[str, list[dict[str, Any]]]) -> None:
    for name, documents in found.items():
        await store.database[name].delete_many({})
        if documents:
            await store.database[name].insert_many(documents)
