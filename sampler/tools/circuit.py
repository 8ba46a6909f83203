"""The circuit breaker of one tool server: whether a session with it may be opened now.

    closed ─a session fails─▶ resting, 0.5 s ─▶ one session tries ─works─▶ closed
                                 ▲                   └─fails─▶ resting, twice as long, 60 s at most
                                 └─ the server says that it is busy: for as long as it asks

Sessions that fail together count as one failure: a failure counts only if its session was begun after the one before. A tool's
answer, and a session that ended without a failure, are what make the server a good one again; until then its next rest is longer.
"""

import asyncio
import time
from collections.abc import Callable

FIRST_REST_S = 0.5
MAX_REST_S = 60.0
MAX_BUSY_REST_S = 600.0  # the most that a server's Retry-After is followed


class Circuit:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0  # one after the other
        self.why = ""  # the last of them, or what the server said
        self.generation = 0  # counts the rests: what began in an earlier one says nothing new
        self._clock = clock
        self._away_since: float | None = None
        self._rests_until = 0.0
        self._trial = False
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """The server is used as usual."""
        return self._away_since is None

    @property
    def is_tried(self) -> bool:
        """One session is being opened; the others wait for what comes of it."""
        return self._trial

    def away_s(self) -> float:
        """How long it has been away; 0: it is not."""
        return 0.0 if self._away_since is None else self._clock() - self._away_since

    def rest_s(self) -> float:
        """How long it is still left alone."""
        return 0.0 if self.is_closed else max(0.0, self._rests_until - self._clock())

    def enter(self) -> bool:
        """Whether a session may be opened now. After a rest one caller may, as a trial, until `opened`, `failed` or `left`."""
        if self.is_closed:
            return True
        if self._trial or self.rest_s() > 0:
            return False
        self._trial = True
        return True

    async def changed(self, timeout_s: float) -> None:
        """Returns when a trial or a rest has ended, or the time is over."""
        try:
            async with asyncio.timeout(min(timeout_s, self.rest_s() or timeout_s)):
                await self._changed.wait()
        except TimeoutError:
            return

    def opened(self) -> None:
        """A session was opened: the others may follow."""
        self._trial = False
        self._away_since = None
        self._tell()

    def answered(self) -> None:
        """A session did what sessions are for: the failures before it are history."""
        self.failures = 0

    def failed(self, generation: int, why: str) -> None:
        """A session failed that began in `generation`."""
        if generation == self.generation:
            self.failures += 1
            self._rest(min(MAX_REST_S, FIRST_REST_S * 2.0 ** (self.failures - 1)), why)

    def busy(self, generation: int, rest_s: float, why: str) -> None:
        """The server asks to be left alone for so long; that is no failure."""
        if generation == self.generation:
            self._rest(min(MAX_BUSY_REST_S, rest_s), why)

    def left(self) -> None:
        """A session was cancelled while it was opened, which says nothing: the next one tries."""
        self._trial = False
        self._tell()

    def _rest(self, seconds: float, why: str) -> None:
        now = self._clock()
        self.why = why
        self.generation += 1
        self._trial = False
        self._away_since = now if self._away_since is None else self._away_since
        self._rests_until = now + seconds
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
