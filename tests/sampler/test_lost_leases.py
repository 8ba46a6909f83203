"""A sampler that stalled beyond its leases: when it resumes, only its overtaken episodes end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from sampler.core.episode import episode
from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from scripts.bench.sampler_chat import Chat
from shared.documents import Claim
from shared.documents.states import RecordStatus, SlotStatus, TaskStatus, Termination
from shared.store import Store
from tests.sampler.episodes import ended, resources, says
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks, let_time_pass

ANSWER = "<answer>4</answer>"
Meanwhile = Callable[[], Coroutine[Any, Any, None]]


async def fails(_: httpx.Request) -> httpx.Response:
    return httpx.Response(500, json={"error": {"message": "out of memory"}})


class Stopped(Chat):
    """Stalls its process at the end of the episode while `meanwhile` runs."""

    meanwhile: Meanwhile

    async def run(self) -> Termination:
        try:
            return await super().run()
        finally:
            await self.meanwhile()


async def play_and_settle_elsewhere(store: Store, shared: Any) -> None:
    """Another sampler takes the slot over, ends the group and settles it: the first attempt's record is closed."""
    await let_time_pass(store)
    successor = await claim(store, "successor")
    await store.records.start(successor, "successor")
    await store.records.move(successor.record_id, RecordStatus.SCORED, {"score": 0.5})
    await store.tasks.finish_slot(successor, 0.5)
    assert await settle_next(store, "successor", shared.config) is not None


@pytest.mark.parametrize("engine", [says(ANSWER), fails], ids=["its score", "its failure"])
async def test_an_episode_whose_group_was_settled_meanwhile_ends_without_an_error_and_writes_nothing(
    store: Store, engine: Any
) -> None:
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, engine) as shared:
        sampler = Stopped(shared, await claim(store))
        sampler.meanwhile = lambda: play_and_settle_elsewhere(store, shared)
        assert await play(sampler) is None
    record, slot, _ = await ended(store, sampler)
    assert (record.status, record.score) == (RecordStatus.ABANDONED, None)
    assert (slot.status, slot.score, slot.attempt) == (SlotStatus.SCORED, 0.5, 2)


async def test_a_lost_lease_does_not_end_the_processes_other_episodes(store: Store) -> None:
    """As the service plays them: in one group of tasks, which the first error would end."""
    overtaken, healthy = [task.id for task in await import_tasks(store, 2, num_generations=1)]
    claims: dict[str, Claim] = {}
    async with resources(store, says(ANSWER)) as shared:
        for _ in range(2):
            got = await claim(store)
            claims[got.task.id] = got
        woken = asyncio.Event()
        late, other = Stopped(shared, claims[overtaken]), Stopped(shared, claims[healthy])

        async def overtake() -> None:
            await play_and_settle_elsewhere(store, shared)
            woken.set()

        async def wait() -> None:
            await asyncio.wait_for(woken.wait(), 60)
            await asyncio.sleep(0.5)  # the other one has ended meanwhile

        late.meanwhile, other.meanwhile = overtake, wait
        await store.database["tasks"].update_one(
            {"_id": healthy}, {"$set": {"seq": 10}}
        )  # the successor claims the first
        async with asyncio.TaskGroup() as group:
            played = [group.create_task(play(sampler)) for sampler in (late, other)]
    assert [task.result() is None for task in played] == [True, False]


class Hangs(AsyncSampler):
    async def run(self) -> Termination:
        await asyncio.sleep(3600)
        return Termination.ANSWERED


async def test_a_slot_that_cannot_be_released_in_time_returns_when_its_lease_ends(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a cancelled episode stays a cancellation: a time-out in its place would end the process."""
    monkeypatch.setattr(episode, "CLEANUP_S", 0.0)
    await import_tasks(store, 1, num_generations=1)
    async with resources(store, says(ANSWER)) as shared:
        task = asyncio.create_task(play(Hangs(shared, await claim(store))))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    found = await store.tasks.get("main:train:0:t0")
    assert found is not None
    assert (found.status, found.slots[0].status) == (TaskStatus.RUNNING, SlotStatus.LEASED)
