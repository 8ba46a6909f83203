"""The time-out of a request to a tool server, which counts from the last sign of life."""

import logging
import time

log = logging.getLogger(__name__)


class Silence:
    """Time-out of a request, counted from the last progress report."""

    def __init__(self, silence_s: float, whole_s: float) -> None:
        now = time.monotonic()
        self.silence_s = min(silence_s, whole_s)
        self._last_sign = now
        self._end = now + whole_s

    def postpone(self, seconds: float) -> None:
        """The request waits this long before it is sent again: its server is busy."""
        self._last_sign = time.monotonic() + seconds
        self._end += seconds

    def remaining_s(self) -> float:
        return min(self._last_sign + self.silence_s, self._end) - time.monotonic()

    async def on_progress(self, progress: float, total: float | None, message: str | None) -> None:
        self._last_sign = time.monotonic()
        log.debug("tool progress %s of %s %s", progress, total, message or "")
