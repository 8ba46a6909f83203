"""When a service queries the database again for what it waits for: after a signal, else after a growing interval."""

import asyncio
import random
import time
from collections.abc import Callable, Collection

from shared.store.signals import Signal, Signals

LONGEST_S = 10.0  # between two queries without a signal


class PollTimer:
    """Times the queries of one loop. Two queries are at least about `shortest_s` apart. Without a signal of `kinds` the interval
    doubles after each query, up to `LONGEST_S`."""

    def __init__(self, signals: Signals, kinds: Collection[Signal], shortest_s: float) -> None:
        self._signals, self._kinds, self._shortest_s = signals, frozenset(kinds), shortest_s
        self._interval_s = shortest_s
        self._received = signals.received(self._kinds)
        self._polled_at = time.monotonic()

    async def pause(self, *, longest_s: float = LONGEST_S, until: Callable[[], bool] = lambda: False) -> None:
        """Wait from one query to the next, for `longest_s` at most. `until` ends the wait; it is evaluated every `shortest_s`."""
        end = self._polled_at + min(self._interval_s, max(longest_s, self._shortest_s))
        signalled = False
        while not (signalled or until()) and (left := end - time.monotonic()) > 0:
            signalled = await self._signals.wait(self._kinds, self._received, min(left, self._shortest_s))
        if signalled:  # the random part separates processes that wait for the same signal
            earliest = self._polled_at + self._shortest_s * random.uniform(0.5, 1.0)
            await asyncio.sleep(max(0.0, earliest - time.monotonic()))
        self._interval_s = self._shortest_s if signalled else min(LONGEST_S, 2 * self._interval_s)
        self._received, self._polled_at = self._signals.received(self._kinds), time.monotonic()
