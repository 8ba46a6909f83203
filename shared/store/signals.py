"""Signals: a service that waits for a change of the database is notified of it.

    a verb writes ─▶ {kinds: [data]} into `signals` ─▶ the server answers the cursors that wait for it ─▶ each waiter polls

`signals` is a capped collection of `CAPPED_BYTES`. A tailable cursor waits in the server, on a single server as on a replica set.
A signal names the kinds of documents that changed, and nothing else. It is neither acknowledged nor journaled, and a writer that
is killed after its write sends none. So services also poll, with a growing interval (`shared/store/poll_timer.py`).
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable
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
AWAIT_S = 20.0  # the server answers a waiting cursor after this, with nothing; below the client's time-out of 60 s
AGAIN_S = 1.0  # after the database could not be asked
NOT_CAPPED, NAMESPACE_EXISTS = 2, 48


class Signal(StrEnum):
    """What has changed."""

    TASKS = "tasks"  # some may be claimed or settled
    DATA = "data"  # a group was settled
    VERSIONS = "versions"  # weights were published or withdrawn
    SERVICES = "services"  # an engine has another status or version
    RUN = "run"  # it was paused or goes on, or its rules changed


class Signals:
    """The signals of one run. `send` returns at once; `close` sends those that are pending."""

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
        """Announce a write that has been acknowledged."""
        self._due.update(kinds)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send_due(), name="send signals")

    def received(self, kinds: Iterable[Signal]) -> int:
        """Number of signals of `kinds` that this process has received. Read it before a query, and pass it to `wait`."""
        return sum(self._counts[kind] for kind in kinds)

    async def wait(self, kinds: Collection[Signal], received: int, timeout_s: float) -> bool:
        """Wait for one more signal of `kinds` than `received`. False after `timeout_s`."""
        if self.received(kinds) != received:
            return True
        changed = asyncio.Event()
        self._waiters[changed] = kinds
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="listen to signals")
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return False
        finally:
            del self._waiters[changed]
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
        """Receive signals while a waiter exists. The cursor stays open for the next one, and keeps its position."""
        while self._waiters and not self._refused:
            try:
                await self._next()
            except PyMongoError as exc:
                self._note(exc)
                await self._forget_cursor()
                await asyncio.sleep(AGAIN_S)

    def _note(self, exc: PyMongoError) -> None:
        """Log why no signal is sent or received. Without the rights no further attempt is made."""
        if isinstance(exc, OperationFailure) and exc.code in REFUSALS:
            self._refused = True
            log.warning(
                "signals are refused: services poll instead, and notice changes late; `tandem database prepare` grants the "
                "rights cause=%s",
                exc.details and exc.details.get("errmsg"),
            )
        else:
            log.debug("no signals for now: %s", exc)

    async def _next(self) -> None:
        if self._cursor is None:
            self._cursor = await self._opened()
            self._notify(Signal)  # earlier signals were missed: each kind may have changed
        try:
            signal = await self._cursor.next()
        except StopAsyncIteration:
            if not self._cursor.alive:  # newer signals have overwritten its position
                await self._forget_cursor()
            return
        kinds = signal.get("kinds")
        self._notify([kind for kind in Signal if isinstance(kinds, list) and kind.value in kinds])

    async def _opened(self) -> AsyncCursor[Document]:
        """A cursor positioned after the newest signal."""
        await self._create()
        newest = await self._read.find_one(sort=[("$natural", -1)])
        if newest is None:
            await self._read.insert_one({"kinds": []})  # a tailable cursor over an empty collection ends at once
        cursor = self._read.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(int(1000 * AWAIT_S))
        try:
            while newest is not None and (await cursor.next())["_id"] != newest["_id"]:
                pass
        except StopAsyncIteration:
            pass
        except OperationFailure as exc:
            if exc.code == NOT_CAPPED:  # the database was dropped, and an insertion made the collection again
                await self._database.command("convertToCapped", SIGNALS, size=CAPPED_BYTES)
            raise
        return cursor

    def _notify(self, kinds: Iterable[Signal]) -> None:
        self._counts.update(kinds)
        for changed, awaited in self._waiters.items():
            if any(kind in awaited for kind in kinds):
                changed.set()

    async def _create(self) -> None:
        """Make the capped collection. An insertion alone would make an unbounded one."""
        if self._exists:
            return
        try:
            await self._database.create_collection(SIGNALS, check_exists=False, capped=True, size=CAPPED_BYTES)
        except OperationFailure as exc:
            if exc.code != NAMESPACE_EXISTS:
                raise
        self._exists = True

    async def _forget_cursor(self) -> None:
        cursor, self._cursor, self._exists = self._cursor, None, False
        if cursor is not None:
            with contextlib.suppress(PyMongoError):
                await cursor.close()
