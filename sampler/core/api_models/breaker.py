"""A circuit breaker: after repeated failures a model is paused, then one caller tries it again."""

import time
from collections.abc import Callable


class Breaker:
    def __init__(self, max_failures: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_failures = max_failures
        self._pause_s = pause_s
        self._clock = clock
        self._failures = 0
        self._closed_at = 0.0  # time of the next permitted request

    def enter(self) -> float:
        """0.0: send the request. Otherwise the seconds of pause left. After a pause one caller gets 0.0, as a trial."""
        if self._failures < self._max_failures:
            return 0.0
        now = self._clock()
        if now < self._closed_at:
            return self._closed_at - now
        self._closed_at = now + self._pause_s  # the others wait for the trial's result
        return 0.0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= self._max_failures:
            self._closed_at = self._clock() + self._pause_s

    def rest(self, seconds: float) -> None:
        """Pause as long as the endpoint requested."""
        self._failures = self._max_failures
        self._closed_at = self._clock() + seconds
