"""Signals: a service that waits is told when something has changed, instead of asking again and again.

    a verb writes ─▶ {kinds: [data]} into `signals` ─▶ the server answers the cursors that wait for it ─▶ each waiter looks

`signals` is a capped collection: the last `CAPPED_BYTES` of them. A tailable cursor waits in the server, on a single server as
on a replica set. A signal says only that it is worth looking. It is neither acknowledged nor journaled, and a killed writer never
sends its own. So waiters also look by themselves, ever less often (`Looks`): what time brings, such as the end of a lease, has no
signal.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any

from pymongo import CursorType, WriteConcern
from pymongo.asynchronous.cursor import AsyncCursor
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from shared.store.connecting import REFUSALS

log = logging.getLogger(__name__)

Document = dict[str, Any]
SIGNALS = "signals"
CAPPED_BYTES = 1 << 16  # about a thousand
GAP_S = 0.02  # between two signals of a process: those in between are one
AWAIT_S = 5.0  # the server answers a waiting cursor after this, with nothing
AGAIN_S = 1.0  # after the database could not be asked
LONGEST_S = 10.0  # between two looks without a signal
NOT_CAPPED, NAMESPACE_EXISTS = 2, 48


class Signal(StrEnum):
    """What has changed."""

    TASKS = "tasks"  # some may be claimed or settled
    DATA = "data"  # a group was settled
    VERSIONS = "versions"  # weights were published or withdrawn
    SERVICES = "services"  # an engine has another status or version
    RUN = "run"  # it was paused or goes on, or its rules changed


class Signals:
    """Of one run. `send` returns at once; `close` sends what is left."""

    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._database = database
        self._written = database.get_collection(SIGNALS, write_concern=WriteConcern(w=0))
        self._read = database.get_collection(SIGNALS, read_concern=ReadConcern("local"))
        self._due: set[Signal] = set()
        self._sending: asyncio.Task[None] | None = None
        self._counts: Counter[Signal] = Counter()
        self._waiters: dict[asyncio.Event, Collection[Signal]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._cursor: AsyncCursor[Document] | None = None
        self._exists = self._refused = False

    def send(self, *kinds: Signal) -> None:
        """After a write."""
        self._due.update(kinds)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_due(), name="send signals")

    def mark(self, kinds: Iterable[Signal]) -> int:
        """Take it before looking, and give it to `wait`."""
        return sum(self._counts[kind] for kind in kinds)

    async def wait(self, kinds: Collection[Signal], mark: int, timeout_s: float) -> bool:
        """Until there was a signal of one of `kinds` since `mark`; False: the time is over."""
        if self.mark(kinds) != mark:
            return True
        told = asyncio.Event()
        self._waiters[told] = kinds
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="listen to signals")
        try:
            async with asyncio.timeout(timeout_s):
                await told.wait()
        except TimeoutError:
            return False
        finally:
            del self._waiters[told]
        return True

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=AGAIN_S)
            self._sending.cancel()

    # ------------------------------------------------------------------ inside

    async def _send_due(self) -> None:
        while self._due and not self._refused:
            kinds, self._due = sorted(self._due), set()
            try:
                await self._create()
                await self._written.insert_one({"kinds": kinds})
            except PyMongoError as exc:
                self._note(exc)
                return
            await asyncio.sleep(GAP_S)

    async def _listen(self) -> None:
        """While somebody waits. In between the cursor keeps its place."""
        while self._waiters and not self._refused:
            try:
                await self._next()
            except PyMongoError as exc:
                self._note(exc)
                await self._forget_cursor()
                await asyncio.sleep(AGAIN_S)

    def _note(self, exc: PyMongoError) -> None:
        """Without signals waiters look by themselves."""
        if isinstance(exc, OperationFailure) and exc.code in REFUSALS:
            self._refused = True
            log.warning(
                "signals are refused: waiting services look at most every %g s, and learn of changes late; "
                "`tandem database prepare` gives the rights cause=%s",
                LONGEST_S,
                exc.details and exc.details.get("errmsg"),
            )
        else:
            log.debug("no signals for now: %s", exc)

    async def _next(self) -> None:
        if self._cursor is None:
            self._cursor = await self._opened()
            self._tell(Signal)  # whatever was sent before
        try:
            signal = await self._cursor.next()
        except StopAsyncIteration:
            if not self._cursor.alive:  # overtaken by the newest ones
                await self._forget_cursor()
            return
        self._tell([kind for kind in Signal if kind.value in str(signal.get("kinds"))])

    async def _opened(self) -> AsyncCursor[Document]:
        """A cursor behind all that is there now."""
        await self._create()
        newest = await self._read.find_one(sort=[("$natural", -1)])
        cursor = self._read.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(int(1000 * AWAIT_S))
        try:
            while newest is not None and (await cursor.next())["_id"] != newest["_id"]:
                pass
        except StopAsyncIteration:
            pass
        except OperationFailure as exc:
            if exc.code == NOT_CAPPED:  # the database was dropped, and who believed that the collection exists made it
                await self._database.command("convertToCapped", SIGNALS, size=CAPPED_BYTES)
            raise
        return cursor

    def _tell(self, kinds: Iterable[Signal]) -> None:
        self._counts.update(kinds)
        for told, wanted in self._waiters.items():
            if any(kind in wanted for kind in kinds):
                told.set()

    async def _create(self) -> None:
        """An insertion alone would make a collection without bound."""
        if self._exists:
            return
        try:
            await self._database.create_collection(SIGNALS, check_exists=False, capped=True, size=CAPPED_BYTES)
            await self._read.insert_one({"kinds": []})  # a cursor over nothing ends at once
        except OperationFailure as exc:
            if exc.code != NAMESPACE_EXISTS:
                raise
        self._exists = True

    async def _forget_cursor(self) -> None:
        cursor, self._cursor, self._exists = self._cursor, None, False
        if cursor is not None:
            with contextlib.suppress(PyMongoError):
                await cursor.close()


class Looks:
    """When a waiter looks at the database again: at a signal, else after ever longer times. Never twice within `gap_s`."""

    def __init__(self, signals: Signals, kinds: Collection[Signal], gap_s: float) -> None:
        self._signals, self._kinds, self.gap_s = signals, frozenset(kinds), gap_s
        self._interval_s = gap_s
        self._mark = signals.mark(self._kinds)
        self._looked_at = time.monotonic()

    async def pause(self, *, at_most_s: float = LONGEST_S, until: Callable[[], bool] = lambda: False) -> None:
        """From one look to the next. `until` is asked every `gap_s`, and ends it."""
        end = self._looked_at + min(self._interval_s, max(at_most_s, self.gap_s))
        told = False
        while not (told or until()) and (left := end - time.monotonic()) > 0:
            told = await self._signals.wait(self._kinds, self._mark, min(left, self.gap_s))
        if told:
            early = self._looked_at + self.gap_s * random.uniform(0.5, 1.0) - time.monotonic()
            await asyncio.sleep(max(0.0, early))
        self._interval_s = self.gap_s if told else min(LONGEST_S, 2 * self._interval_s)
        self._mark, self._looked_at = self._signals.mark(self._kinds), time.monotonic()
