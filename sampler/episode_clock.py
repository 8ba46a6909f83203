"""The time-out of an episode, which stands still while something is done that the agent does not do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class EpisodeClock:
    """Of one episode. Blocks of `stopped` do not nest, nor run at the same time."""

    def __init__(self) -> None:
        self._timeout: asyncio.Timeout | None = None

    @asynccontextmanager
    async def running(self, limit_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError once the block has taken `limit_s`, without what was `stopped` in it."""
        try:
            async with asyncio.timeout(limit_s) as self._timeout:
                yield
        finally:
            self._timeout = None

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """What the block takes does not count. The block has its own bound."""
        timeout = self._timeout
        due = None if timeout is None or timeout.expired() else timeout.when()
        if timeout is None or due is None:
            yield
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        timeout.reschedule(None)
        try:
            yield
        finally:
            if self._timeout is timeout:  # else the episode was cancelled meanwhile
                timeout.reschedule(due + loop.time() - began)
