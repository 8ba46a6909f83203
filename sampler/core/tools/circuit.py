"""The circuit breaker of one tool server: whether a session with it may be opened now.

    closed ─a session fails─▶ paused, 0.5 s ─▶ one trial session ─works─▶ closed
                                 ▲                   └─fails─▶ paused, twice as long, 60 s at most
                                 └─ the server reports that it is busy: for as long as it requests

Sessions that fail together count as one failure: a failure counts only if its session began after the previous failure. A
tool's answer, or a session that ended without failure, resets the pause; until then the next pause is longer.
"""

import asyncio
import time
from collections.abc import Callable

FIRST_REST_S = 0.5
MAX_REST_S = 60.0
MAX_BUSY_REST_S = 600.0  # upper bound for a server's Retry-After


class Circuit:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0  # consecutive
        self.why = ""  # the last failure, or the server's message
        self.generation = 0  # counts the pauses: results from before the last one are ignored
        self._clock = clock
        self._away_since: float | None = None
        self._rests_until = 0.0
        self._trial = False
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Sessions may be opened as usual."""
        return self._away_since is None

    @property
    def is_tried(self) -> bool:
        """One trial session is being opened; the others wait for its result."""
        return self._trial

    def away_s(self) -> float:
        """How long the server has been unavailable; 0: it is available."""
        return 0.0 if self._away_since is None else self._clock() - self._away_since

    def rest_s(self) -> float:
        """Remaining seconds of the pause."""
        return 0.0 if self.is_closed else max(0.0, self._rests_until - self._clock())

    def enter(self) -> bool:
        """Whether a session may be opened now. After a pause one caller may, as a trial, until `opened`, `failed` or `left`."""
        if self.is_closed:
            return True
        if self._trial or self.rest_s() > 0:
            return False
        self._trial = True
        return True

    async def changed(self, timeout_s: float) -> None:
        """Wait until a trial or a pause has ended, or the time is over."""
        try:
            async with asyncio.timeout(min(timeout_s, self.rest_s() or timeout_s)):
                await self._changed.wait()
        except TimeoutError:
            return

    def opened(self) -> None:
        """A session was opened: the others may follow."""
        self._trial = False
        self._away_since = None
        self._notify()

    def answered(self) -> None:
        """A session worked: reset the failures before it."""
        self.failures = 0

    def failed(self, generation: int, why: str) -> None:
        """A session that began in `generation` failed."""
        if generation == self.generation:
            self.failures += 1
            self._rest(min(MAX_REST_S, FIRST_REST_S * 2.0 ** (self.failures - 1)), why)

    def busy(self, generation: int, rest_s: float, why: str) -> None:
        """The server requests a pause of this length; that is not a failure."""
        if generation == self.generation:
            self._rest(min(MAX_BUSY_REST_S, rest_s), why)

    def left(self) -> None:
        """A session was cancelled while being opened, which proves nothing: the next one tries."""
        self._trial = False
        self._notify()

    def _rest(self, seconds: float, why: str) -> None:
        now = self._clock()
        self.why = why
        self.generation += 1
        self._trial = False
        self._away_since = now if self._away_since is None else self._away_since
        self._rests_until = now + seconds
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
