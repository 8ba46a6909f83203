"""Waits: while a process does nothing, its heartbeat says for what, since when, why, and what ends the wait.

    waits 4:12 for 4 groups for step 12: 0 ready, 2 failing (AgentCrashed); until they are played, or fail for good

`workers.doing` holds the sentence, and `workers.stats.waited_s` the seconds (0: it works), for alerts. So `tandem status`, the
live display, the viewer and the metrics page show every wait alike. Its owner is the process whose heartbeat says it:

    activity = Activity()
    with activity.of_process():            in all of the block, also in tasks and threads' work that begin there
        ...
        with waiting(Wait(what, why, until)) as wait:      around each loop that asks until something is so
            while not ...:
                wait.set(Wait(what, why_now, until))

`waiting(..., inside=True)` is a wait of a part: an episode's, or one next to the work. The process goes on and says that it has
some. `tests/test_waits.py` finds a loop that waits without one.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

WAITED = "waited_s"  # among a worker's statistics
SHORT_S = 2.0  # waits inside that are shorter are not shown
_SECONDS = re.compile(r"\bwaits [\d:]+ for")


@dataclass(frozen=True, slots=True)
class Wait:
    """`what` identifies the wait: its seconds are counted until there is another one. `until` completes "until …"."""

    what: str
    why: str
    until: str

    def __str__(self) -> str:
        return f"waits for {self.what}: {self.why}; until {self.until}"


class Activity:
    """What a process does now: a text, or a wait, whose seconds it counts. Its methods may be called from any thread."""

    def __init__(self, doing: str | Wait = "starting") -> None:
        self._doing = doing
        self._since = time.monotonic()
        self._waits: list[OpenWait] = []  # the oldest first

    def set(self, doing: str | Wait) -> None:
        if _name(doing) != _name(self._doing):
            self._since = time.monotonic()
        self._doing = doing

    @contextmanager
    def of_process(self) -> Iterator[None]:
        """Waits of what begins in the block belong to this activity."""
        token = _ACTIVITY.set(self)
        try:
            yield
        finally:
            _ACTIVITY.reset(token)

    @property
    def wait(self) -> Wait | None:
        """What the process as a whole waits for; None: it works."""
        whole = self._whole
        return whole.wait if whole is not None else self._doing if isinstance(self._doing, Wait) else None

    @property
    def waited_s(self) -> float:
        whole = self._whole
        since = whole.since if whole is not None else self._since if isinstance(self._doing, Wait) else None
        return 0.0 if since is None else round(time.monotonic() - since, 1)

    def __str__(self) -> str:
        wait = self.wait
        text = str(self._doing) if wait is None else _timed(wait, self.waited_s)
        now = time.monotonic()
        inside = [one for one in list(self._waits) if one.inside and now - one.since >= SHORT_S]
        if not inside:
            return text
        return f"{text}; {len(inside)} waits inside, the longest {_timed(inside[0].wait, now - inside[0].since)}"

    @property
    def _whole(self) -> "OpenWait | None":
        return next((one for one in list(self._waits) if not one.inside), None)

    def begin(self, wait: "OpenWait") -> None:
        self._waits.append(wait)

    def end(self, wait: "OpenWait") -> None:
        self._waits.remove(wait)


@dataclass(slots=True, eq=False)
class OpenWait:
    """A wait that goes on. `since`: monotonic seconds."""

    wait: Wait
    inside: bool = False
    since: float = field(default_factory=time.monotonic)

    def set(self, wait: Wait) -> None:
        """What is known of it now; its seconds go on."""
        self.wait = wait


_ACTIVITY: ContextVar[Activity | None] = ContextVar("activity of this process", default=None)


@contextmanager
def waiting(wait: Wait, *, inside: bool = False, since: float | None = None) -> Iterator[OpenWait]:
    """Meanwhile the process waits, or (`inside`) a part of it does; `since`: if it began earlier (monotonic seconds).

    Outside of an `Activity.of_process`, as in commands and tests, it is shown nowhere.
    """
    activity, one = _ACTIVITY.get(), OpenWait(wait, inside, time.monotonic() if since is None else since)
    if activity is None:
        yield one
        return
    activity.begin(one)
    try:
        yield one
    finally:
        activity.end(one)


def _timed(wait: Wait, seconds: float) -> str:
    return f"waits {as_clock(seconds)}{str(wait).removeprefix('waits')}"


def untimed(doing: str) -> str:
    """The text of an activity without the seconds of its waits."""
    return _SECONDS.sub("waits for", doing)


def _name(doing: str | Wait) -> object:
    return (doing.what,) if isinstance(doing, Wait) else doing


def as_clock(seconds: float) -> str:
    """65 seconds are 1:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
