"""A trainer's part in the lease of a device that it shares with engines.

    batch is there ─▶ claim ─▶ engines sleep ─▶ take ─▶ states to the device ─▶ still held? ─▶ step, publish ─▶ states to the
                        ▲                                                          │ no              host ─▶ release
                        └──────────────────────────────────────────────────────────┘

Promise: nothing is computed on a device without a lease that held when the states were there; the lease is never held while the
trainer waits for data, and ends by itself if the process dies. Rank 0 speaks for all ranks. Machines may differ: if one of them
shares its GPUs with engines, all ranks wait for these, and only the states on that machine move to the host.
"""

import asyncio
import logging
import math
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from shared.documents.leases import LeaseClaim
from shared.documents.states import LeaseKind
from shared.errors import ConfigError
from shared.processes.waits import OpenWait, Wait, waiting
from shared.store.leases import lease_id
from trainer.process.parallel import Parallel, rank_0_wait
from trainer.process.store_bridge import StoreBridge
from trainer.settings.sharing import SharingSettings
from trainer.step.learner import Learner
from trainer.step.residence import to_device, to_host

log = logging.getLogger(__name__)

CLAIM_POLL_S = 0.1
LEASE_POLL_S = 1.0  # at what the device is waited for
LOG_EVERY_S = 30.0
RENEWALS = 4  # of a lease, in its time


class TrainerDevice:
    """Without a `shared_device` on any rank nothing is asked and nothing moves. Every rank must make one."""

    def __init__(self, bridge: StoreBridge, settings: SharingSettings, parallel: Parallel, worker: str) -> None:
        self._bridge = bridge
        self._leases = bridge.store.leases
        self._settings = settings
        self._parallel = parallel
        self._worker = worker
        self._device = _agreed(parallel.everyone.gather_objects((socket.gethostname(), settings.shared_device)))
        self._lease = lease_id(LeaseKind.GPU, self._device or "")
        self._polled_at = self._logged_at = -math.inf
        if self._device is not None and parallel.is_main:
            bridge(self._leases.ensure(LeaseKind.GPU, self._device))

    @contextmanager
    def held(self, learner: Learner | None = None) -> Iterator[dict[str, float]]:
        """Have the device in this context, with `learner`'s states on it; yields the seconds that were waited, as a metric.

        Every rank must call it. If an error leaves the context the lease is left to end by itself: the memory is still used.
        """
        if self._device is None:
            yield {}
            return
        began = time.monotonic()
        claim, renewing = self._begin(learner)
        metrics = {"time/device_wait_s": time.monotonic() - began}
        try:
            yield metrics
            self._parallel.barrier()
            if learner is not None:
                self.vacate(learner)
            self._parallel.barrier()
            if claim is not None:
                if not self._bridge(self._leases.is_held(claim)):
                    log.warning("device lost during a step lease=%s: engines may have run out of memory", self._lease)
                self._bridge(self._leases.release(claim))
        finally:
            if renewing is not None:
                renewing.cancel()

    def vacate(self, learner: Learner) -> None:
        """Free this rank's part of the device: the states' memory, and the allocator's free blocks."""
        if self._shares_here:
            to_host(learner, self._parallel.device)

    @property
    def _shares_here(self) -> bool:
        return self._settings.shared_device is not None

    def _begin(self, learner: Learner | None) -> tuple[LeaseClaim | None, Any]:
        while True:
            claim, renewing = self._acquire() if self._parallel.is_main else (None, None)
            with waiting(rank_0_wait("the device")):
                self._parallel.barrier()
            if learner is not None and self._shares_here:
                to_device(learner, self._parallel.device)
            self._parallel.barrier()
            held = claim is None or self._bridge(self._leases.is_held(claim))
            if self._parallel.broadcast_object(held):
                return claim, renewing
            log.warning("device lost before a step lease=%s: asking again", self._lease)
            if renewing is not None:
                renewing.cancel()
            if learner is not None:
                self.vacate(learner)

    def _acquire(self) -> tuple[LeaseClaim, Any]:
        with waiting(self._wait()) as wait:
            while True:
                holder = f"{self._worker}:{uuid.uuid4().hex}"
                claim = self._bridge(self._leases.claim(self._lease, holder, self._settings.device_lease_s))
                if claim is not None and (renewing := self._taken(claim, wait)) is not None:
                    return claim, renewing
                self._refresh(wait)
                time.sleep(CLAIM_POLL_S)

    def _taken(self, claim: LeaseClaim, wait: OpenWait) -> Any:
        """Its renewal, once every engine sleeps. None: the claim is over, since the process was stopped for too long."""
        renewing = self._bridge.background(self._renew(claim))
        while not self._bridge(self._leases.take(claim)):
            if renewing.done():
                return None
            self._refresh(wait)
            time.sleep(CLAIM_POLL_S)
        return renewing

    async def _renew(self, claim: LeaseClaim) -> None:
        """Ends when the lease is over."""
        while await self._leases.renew(claim, self._settings.device_lease_s):  # noqa: ASYNC110  # nothing else ends it
            await asyncio.sleep(self._settings.device_lease_s / RENEWALS)

    def _refresh(self, wait: OpenWait) -> None:
        """Once a second: what is waited for."""
        now = time.monotonic()
        if now - self._polled_at < LEASE_POLL_S:
            return
        self._polled_at = now
        wait.set(self._wait())
        if now - max(wait.since, self._logged_at) >= LOG_EVERY_S:
            self._logged_at = now
            log.info("%s", wait.wait)

    def _wait(self) -> Wait:
        what, lease = f"device {self._device}", self._bridge(self._leases.get(self._lease))
        awake = [one.service for one in lease.occupants if one.asleep_for is None]
        if lease.holder is not None and not lease.holder.startswith(f"{self._worker}:"):
            end = f"that releases it, or has not renewed it for {self._settings.device_lease_s:g} s (device_lease_s)"
            return Wait(what, f"{lease.holder} holds it", end)
        on_it = f"engines on it are awake: {', '.join(sorted(awake))}" if awake else "it was just claimed"
        return Wait(what, on_it, "every engine on it sleeps, or its keeper has died")


def _agreed(settings: Sequence[tuple[str, str | None]]) -> str | None:
    """The one device of all ranks, each given as (its machine, its setting). Raises ConfigError if they name several."""
    machines = {device: machine for machine, device in reversed(settings) if device is not None}
    if len(machines) > 1:
        named = ", ".join(f"{device} on {machine}" for device, machine in sorted(machines.items()))
        raise ConfigError(
            f"shared_device differs among the machines of this trainer: {named}; expected one name, since one lease covers all "
            "GPUs that the trainer shares with engines"
        )
    return next(iter(machines), None)
