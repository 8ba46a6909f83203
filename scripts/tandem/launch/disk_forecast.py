"""When the disk of a run's folder will be full, by the growth of what no setting bounds: the embedded database and the logs."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from tandem.launch.disk_use import disk_use, size_text

UNBOUNDED = ("mongodb", "other")
LEAST_STEPS = 5  # between the two sizes that growth is measured by
EVERY_S = 60.0  # walking the folder of a long run takes a while
AGAIN = 0.5  # a further warning once so much of the disk's free space is used up


class DiskForecast:
    """Of one run. `observe` walks its folder: call it in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first: tuple[int, int] | None = None  # step, bytes that no setting bounds
        self._last_step = 0
        self._observed_at = -EVERY_S
        self._warned_at: int | None = None  # bytes that were free

    def is_due(self) -> bool:
        return time.monotonic() - self._observed_at >= EVERY_S

    def observe(self, step: int, max_steps: int) -> str | None:
        """A warning if the disk will be full before step `max_steps`; None: it will not, or it was just said."""
        self._observed_at = time.monotonic()
        taken, free = _unbounded(disk_use(self._folder)), shutil.disk_usage(self._folder).free
        if self._first is None or step < self._last_step:  # a resume goes back
            self._first = (step, taken)
        self._last_step = step
        steps = step - self._first[0]
        if steps < LEAST_STEPS:
            return None
        a_step = (taken - self._first[1]) / steps
        fits = a_step <= 0 or a_step * (max_steps - step) < free
        if fits or (self._warned_at is not None and free > AGAIN * self._warned_at):
            return None
        self._warned_at = free
        full = step + int(free / a_step)
        return (
            f"the disk of {self._folder} will be full at about step {full} of {max_steps}: {size_text(free)} are free, and "
            f"database and logs grow by {size_text(round(a_step))} a step; free some, or use a database elsewhere"
        )


def _unbounded(use: Mapping[str, int]) -> int:
    return sum(use.get(part, 0) for part in UNBOUNDED)
