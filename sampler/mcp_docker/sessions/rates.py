"""A bound on the requests per second of one session."""

import time

WINDOW_S = 10.0


class Rate:
    """At most `per_s` on average over the window; a burst may use it up at once."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s * WINDOW_S
        self._at = time.monotonic()

    def wait_s(self) -> float:
        """Count one. 0: it is allowed; else the seconds after which it would be."""
        now = time.monotonic()
        self._left = min(self._per_s * WINDOW_S, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._per_s
        self._left -= 1
        return 0.0
