"""Time limits that count work alone: they stand still while the work waits for a place in front of a bounded resource.

    async with time_limit(120):              raises TimeoutError
        async with queued(Wait(…)):          around the wait for a place: no limit of this work runs
            await places.acquire()
        ...                                  the work itself

Without it, a resource that is busy with other work makes this work fail, although nothing is wrong with it. What waits must be
bounded by something else: each holder of a place by its own limit, or the wait by a limit of its own.
Tasks that are started inside of a limit belong to it: their waits stop it too.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from shared.processes.waits import OpenWait, Wait, waiting


class TimeLimit:
    """Of one block. It stands still from the first `stop` to the last `go_on`."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._stops, self._began, self._is_over = 0, 0.0, False
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """When the block's time ends, on the loop's clock; None: it stands still, or is over."""
        return None if self._is_over else self._timeout.when()

    def stop(self) -> None:
        self._stops += 1
        if self._stops == 1 and self._goes_on:
            self._due, self._began = self._timeout.when(), asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def go_on(self) -> None:
        self._stops -= 1
        if self._stops == 0 and self._due is not None and self._goes_on:
            self._timeout.reschedule(self._due + asyncio.get_running_loop().time() - self._began)
            self._due = None

    def end(self) -> None:
        self._is_over = True

    @property
    def _goes_on(self) -> bool:
        return not self._is_over and not self._timeout.expired()


_LIMITS: ContextVar[tuple[TimeLimit, ...]] = ContextVar("time limits of this task", default=())


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[TimeLimit]:
    """Raises TimeoutError once the block has worked for so long; None: it has no limit of its own."""
    async with asyncio.timeout(seconds) as timeout:
        limit = TimeLimit(timeout)
        token = _LIMITS.set((*_LIMITS.get(), limit))
        try:
            yield limit
        finally:
            limit.end()
            _LIMITS.reset(token)


@asynccontextmanager
async def queued(wait: Wait, since: float | None = None) -> AsyncIterator[OpenWait]:
    """What the block takes counts for no limit around it; the process's heartbeat says what it waits for, `since` when."""
    limits = _LIMITS.get()
    for limit in limits:
        limit.stop()
    try:
        with waiting(wait, inside=True, since=since) as one:
            yield one
    finally:
        for limit in limits:
            limit.go_on()
