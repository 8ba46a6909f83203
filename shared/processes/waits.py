"""Waits: while a process does nothing, its heartbeat says for what, since when, why, and what ends the wait.

    waits 4:12 for 4 groups for step 12: 0 ready, 2 failing (AgentCrashed); until they are played, or fail for good

`workers.doing` holds the sentence, and `workers.stats.waited_s` the seconds (0: it works), for alerts. So `tandem status`, the
live display, the viewer and the metrics page show every wait alike.
"""

import time
from dataclasses import dataclass

WAITED = "waited_s"  # among a worker's statistics


@dataclass(frozen=True, slots=True)
class Wait:
    """`what` identifies the wait: its seconds are counted until there is another one. `until` completes "until …"."""

    what: str
    why: str
    until: str

    def __str__(self) -> str:
        return f"waits for {self.what}: {self.why}; until {self.until}"


class Activity:
    """What a process does now: a text, or a wait, whose seconds it counts."""

    def __init__(self, doing: str | Wait = "starting") -> None:
        self._doing = doing
        self._since = time.monotonic()

    def set(self, doing: str | Wait) -> None:
        if _name(doing) != _name(self._doing):
            self._since = time.monotonic()
        self._doing = doing

    @property
    def waited_s(self) -> float:
        return round(time.monotonic() - self._since, 1) if isinstance(self._doing, Wait) else 0.0

    def __str__(self) -> str:
        doing = self._doing
        if not isinstance(doing, Wait):
            return doing
        return f"waits {as_clock(self.waited_s)}{str(doing).removeprefix('waits')}"


def _name(doing: str | Wait) -> object:
    return (doing.what,) if isinstance(doing, Wait) else doing


def as_clock(seconds: float) -> str:
    """65 seconds are 1:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
