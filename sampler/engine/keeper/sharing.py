"""A keeper's part in the lease of a device that its engine shares with a trainer.

    free ───▶ the engine serves            claimed ───▶ pause ─▶ release memory ─▶ confirm
      ▲                                                                   │
      └── update to the newest weights ◀── resume memory ◀── `wake` ◀── released, or over by the server's clock

Promise: the engine's memory is allocated only between a successful `wake` and the next confirmation; an engine starts only while
the lease is free. Of an engine that this keeper has not started, it cannot be known whether it sleeps, so it cannot share.
"""

import asyncio
import logging
from typing import Literal

from sampler.engine.client.engine_client import EngineClient
from shared.documents.states import LeaseKind
from shared.store import Store
from shared.store.leases import lease_id
from shared.store.liveness import LEAST_SILENCE_S

log = logging.getLogger(__name__)

WAIT_S = 0.25


class SharedDevice:
    """`asleep`: the engine has released its memory, or does not run."""

    def __init__(self, store: Store, client: EngineClient, device: str, occupant: str) -> None:
        self._leases = store.leases
        self._client = client
        self._device = device
        self._lease = lease_id(LeaseKind.GPU, device)
        self._occupant = occupant
        self._url = ""
        self.asleep = True

    async def until_free(self, url: str, start_s: float, stop: asyncio.Event) -> None:
        """Before the engine starts, which takes at most `start_s`: wait until the device is free, or `stop` is set."""
        self._url, self.asleep = url, True
        await self._leases.ensure(LeaseKind.GPU, self._device)
        while not stop.is_set():
            await self.stay()
            await self._confirm_if_claimed()
            if await self._may_wake():
                await self._leases.stay(self._lease, self._occupant, start_s + LEAST_SILENCE_S)
                self.asleep = False
                return
            await asyncio.sleep(WAIT_S)

    async def stay(self) -> None:
        """With every heartbeat: keep counting as alive."""
        if not await self._leases.stay(self._lease, self._occupant, LEAST_SILENCE_S):
            await self._leases.occupy(self._lease, self._occupant, self._url, LEAST_SILENCE_S, asleep=self.asleep)

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
        """Allocate the engine's memory if the device is free. It stays paused, without weights. Raises EngineError."""
        if not await self._may_wake():
            return False
        await self._client.resume_memory(self._url)
        self.asleep = False
        log.info("engine wakes device=%s", self._device)
        return True

    async def leave(self) -> None:
        """The engine has ended."""
        await self._leases.leave(self._lease, self._occupant)

    async def _confirm_if_claimed(self) -> None:
        if (claimed := await self._leases.claimed(self._lease)) is not None:
            mine = claimed.occupant(self._occupant)
            if mine is not None and mine.asleep_for is None:
                await self._leases.confirm(self._lease, self._occupant, claimed.attempt)

    async def _may_wake(self) -> bool:
        if await self.is_claimed():
            return False
        mine = (await self._leases.get(self._lease)).occupant(self._occupant)
        if mine is None:
            return False
        return mine.asleep_for is None or await self._leases.wake(self._lease, self._occupant, mine.asleep_for)
