"""A keeper's part in the lease of a device that its engine shares with a trainer.

    free ───▶ the engine serves            claimed ───▶ pause ─▶ release memory ─▶ confirm
      ▲                                                                   │
      └── update to the newest weights ◀── resume memory ◀── `wake` ◀── released, or over by the server's clock

Promise: the engine's memory is allocated only between a successful `wake` and the next confirmation; an engine starts only while
the lease is free. A task of its own tells the lease that the keeper lives, until the engine has ended. Of an engine that this
keeper has not started, it cannot be known whether it sleeps, so it cannot share.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from sampler.core.engines.client.engine_client import EngineClient
from shared.documents.states import LeaseKind
from shared.processes.waits import Wait, waiting
from shared.store import Store
from shared.store.leases import lease_id
from shared.store.liveness import LEAST_SILENCE_S

log = logging.getLogger(__name__)

WAIT_S = 0.25
STAY_S = LEAST_SILENCE_S / 15  # between two signs of life


class SharedDevice:
    """`asleep`: the engine has released its memory, or does not run. If that is unknown, it is not asleep."""

    def __init__(self, store: Store, client: EngineClient, device: str, occupant: str, url: str) -> None:
        self._leases = store.leases
        self._client = client
        self._device = device
        self._lease = lease_id(LeaseKind.GPU, device)
        self._occupant = occupant
        self._url = url
        self.asleep = True

    @asynccontextmanager
    async def occupied(self) -> AsyncIterator[None]:
        """Count as alive in this context, also during a start, an update or a request that lasts. The engine ends within it."""
        await self._leases.ensure(LeaseKind.GPU, self._device)
        try:
            async with asyncio.TaskGroup() as group:
                staying = group.create_task(self._stay_on(), name="stay")
                yield
                staying.cancel()
        finally:
            await self._leases.leave(self._lease, self._occupant)

    async def _stay_on(self) -> None:
        while True:
            await self._stay()
            await asyncio.sleep(STAY_S)

    async def _stay(self) -> None:
        if not await self._leases.stay(self._lease, self._occupant, LEAST_SILENCE_S):
            await self._leases.occupy(self._lease, self._occupant, self._url, LEAST_SILENCE_S, asleep=self.asleep)

    async def until_free(self, stop: asyncio.Event) -> None:
        """Before the engine starts, and after all processes of an earlier one have ended: wait for the device, or for `stop`."""
        self.asleep = True
        with waiting(self._wait(None)) as wait:
            while not stop.is_set():
                await self._stay()
                await self._confirm_if_claimed()
                if await self._may_wake():
                    self.asleep = False
                    return
                wait.set(self._wait((await self._leases.get(self._lease)).holder))
                await asyncio.sleep(WAIT_S)

    def _wait(self, holder: str | None) -> Wait:
        why = f"{holder} has it" if holder else "a trainer claims it"
        return Wait(f"device {self._device}", why, "that releases it, or its lease ends")

    async def is_claimed(self) -> bool:
        return await self._leases.claimed(self._lease) is not None

    async def sleep(self, mode: Literal["retract", "abort"]) -> None:
        """Pause the engine and release its memory, then confirm. Raises EngineError; nothing is confirmed then."""
        if not self.asleep:
            await self._client.pause(self._url, mode)
            await self._client.flush_cache(
                self._url
            )  # refused while requests hold the cache, where a release would crash
            await self._client.release_memory(self._url)
            self.asleep = True
            log.info("engine sleeps device=%s", self._device)
        await self._confirm_if_claimed()

    async def wake(self) -> bool:
        """Allocate the engine's memory if the device is free. It stays paused, without weights.

        Raises EngineError. Its memory may be allocated then, and a second request would crash SGLang: the engine must be ended.
        """
        if not await self._may_wake():
            return False
        self.asleep = False
        await self._client.resume_memory(self._url)
        log.info("engine wakes device=%s", self._device)
        return True

    async def _confirm_if_claimed(self) -> None:
        claimed = await self._leases.claimed(self._lease)
        if claimed is not None:
            mine = claimed.occupant(self._occupant)
            if mine is not None and mine.asleep_for is None:
                await self._leases.confirm(self._lease, self._occupant, claimed.attempt)

    async def _may_wake(self) -> bool:
        if await self.is_claimed():
            return False
        mine = (await self._leases.get(self._lease)).occupant(self._occupant)
        if mine is None:
            return False
        return mine.asleep_for is None or await self._leases.wake(
            self._lease, self._occupant, mine.asleep_for, LEAST_SILENCE_S
        )
