"""The time-out of an episode, which stands still while something is done that the agent does not do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sampler.core.time_limits import TimeLimit, time_limit


class EpisodeClock:
    """Of one episode. Queues stop it too (`sampler/core/time_limits.py`)."""

    def __init__(self) -> None:
        self._limit: TimeLimit | None = None

    @property
    def due(self) -> float | None:
        return None if self._limit is None else self._limit.due

    @asynccontextmanager
    async def running(self, limit_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError once the block has taken `limit_s`, without what was `stopped` in it."""
        try:
            async with time_limit(limit_s) as self._limit:
                yield
        finally:
            self._limit = None

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """What the block takes does not count. The block has its own bound. Any task may call it."""
        limit = self._limit
        if limit is None:
            yield
            return
        limit.stop()
        try:
            yield
        finally:
            limit.go_on()
