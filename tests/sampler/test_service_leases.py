"""A running sampler and the leases of its episodes: it renews what it holds, and ends what it has lost."""

import asyncio
import time
from typing import ClassVar

from sampler.core.episode.sampler import AsyncSampler
from shared.documents import Slot
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.running import running_sampler, until
from tests.shared.builders import claim, import_tasks, let_time_pass

# One episode at a time, so that this sampler does not take over its own slot.
OPTIONS = {"renew_s": 0.05, "max_concurrent_episodes": 1, "grace_s": 0.01, "poll_s": 0.02}


class Endless(AsyncSampler):
    """Plays until it is cancelled."""

    started: ClassVar[asyncio.Event]
    cancelled: ClassVar[asyncio.Event]

    async def run(self) -> Termination:
        self.started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Termination.ANSWERED


def endless() -> type[Endless]:
    """With events of this test's own event loop."""
    return type("EndlessHere", (Endless,), {"started": asyncio.Event(), "cancelled": asyncio.Event()})


async def slot_of(store: Store) -> Slot:
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    return task.slots[0]


async def test_the_lease_of_a_long_episode_is_renewed_while_it_is_played(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    sampler = endless()
    async with running_sampler(store, sampler, **OPTIONS):
        await asyncio.wait_for(sampler.started.wait(), 60)
        first = (await slot_of(store)).free_at
        await until(lambda: slot_of(store), lambda slot: slot.free_at > first)
        await let_time_pass(store)
        slot = await until(lambda: slot_of(store), lambda slot: slot.free_at >= first)
        assert slot.attempt == 1
        assert await claim(store, "thief") is None
        assert not sampler.cancelled.is_set()


async def test_an_episode_with_a_lost_lease_is_cancelled_and_the_sampler_continues(store: Store) -> None:
    """The tokens that it would still sample count for nothing, and its place is free for another."""
    await import_tasks(store, 1, num_generations=1)
    sampler = endless()
    async with running_sampler(store, sampler, **OPTIONS) as service:
        await asyncio.wait_for(sampler.started.wait(), 60)
        successor = None
        end = time.monotonic() + 60
        while successor is None and time.monotonic() < end:  # a renewal may come first
            await let_time_pass(store)
            successor = await claim(store, "successor")
        assert successor is not None
        await asyncio.wait_for(sampler.cancelled.wait(), 60)
        record = await until(
            lambda: store.records.get("main:train:0:t0:0:1"),
            lambda record: record is not None and record.status is RecordStatus.ABANDONED,
        )
        assert record is not None
        assert record.termination == Termination.CANCELLED
        slot = await slot_of(store)
        assert (slot.attempt, slot.worker) == (2, "successor"), "the successor keeps it"
        sampler.started.clear()
        await import_tasks(store, 2, num_generations=1)
        await asyncio.wait_for(sampler.started.wait(), 60)
        assert not service.done()
