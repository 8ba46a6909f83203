"""One open session, as its episode sees it: renewed while the model thinks, cancelled at every end."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sampler.core.errors import EnvironmentFailed
from sampler.environments.answers import StepReply
from sampler.environments.client import EnvironmentClient

log = logging.getLogger(__name__)

AGAIN = 4  # a renewal that failed is tried again after this part of the interval


class EnvironmentSession:
    """`opening`: the first step."""

    def __init__(
        self, client: EnvironmentClient, url: str, number: str, opening: StepReply, token: str | None = None
    ) -> None:
        self.url = url
        self.number = number
        self.opening = opening
        self._client = client
        self._token = token
        self._is_over = opening.finish
        self._asking = False

    async def interact(self, messages: Sequence[Mapping[str, Any]]) -> StepReply:
        """Raises EnvironmentFailed."""
        self._asking = True
        try:
            step = await self._client.interact(self.url, self.number, messages, self._token)
        finally:
            self._asking = False
        self._is_over = step.finish
        return step

    @contextlib.asynccontextmanager
    async def kept(self, renew_s: float | None) -> AsyncIterator[None]:
        """Renewed at this interval (None: never) within the block, and ended after it."""
        renewing = None if renew_s is None else asyncio.create_task(self._renew(renew_s), name="environment session")
        try:
            yield
        finally:
            if renewing is not None:
                renewing.cancel()
            if not self._is_over:
                await self._client.end(self.url, self.number, self._token)

    async def _renew(self, renew_s: float) -> None:
        """A renewal that failed is tried again: the lease is longer than one interval, and a session that is lost says so at
        its next step."""
        wait_s = renew_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = renew_s
            if self._asking or self._is_over:  # the request renews it too
                continue
            try:
                await self._client.renew(self.url, self.number, self._token)
            except EnvironmentFailed as exc:
                log.info("session %s of %s was not renewed: %s", self.number, self.url, exc)
                wait_s = renew_s / AGAIN
