"""Limits what the sessions of one process do to tool servers at once.

    episode ─▶ is the server unavailable? ─wait, then release the slot without a failure─▶ ToolServerUnavailable
                 └─no─▶ a place among the sessions being opened ─▶ open, list the tools ─▶ the session
                                                                     └─fails─▶ the server is unavailable for a while
Opening a session takes a process (stdio) or a few requests, and does not depend on the task: an episode is never at fault if it
fails. So it is retried, at growing intervals, until it works. An episode waits for that for a while and then releases its slot,
and no failure is counted. `away` and `has_room` make the sampler stop claiming meanwhile; `alarms` give people the reason.

The connections of a server with a limit (`max_connections` in the servers file) are divided: a quarter for sessions being
opened, a few for listening streams, a few for sessions that end, the rest for calls.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from sampler.core.errors import ToolFailure, ToolServerUnavailable
from sampler.core.time_limits import queued
from sampler.core.tools.circuit import Circuit
from sampler.core.tools.own_ends import Ends
from sampler.core.tools.shared_process import SharedProcess
from shared.mcp.busy import ServerBusy
from shared.mcp.servers import ToolServer
from shared.outside_text import clipped
from shared.processes.waits import Wait

T = TypeVar("T")

MAX_OPENING = 64
# A listening stream reports tool list changes, which concern all sessions; each stream is one connection.
MAX_LISTENING = 8
_MAX_TOLD_CHARS = 500


class Traffic:
    """One per process. `max_opening`: sessions with remote servers being opened at once; `max_starting`: processes of stdio
    servers starting at once, None: two per core. `patience_s`: how long an episode waits for an unavailable server."""

    def __init__(
        self, max_opening: int = MAX_OPENING, max_starting: int | None = None, patience_s: float = 0.0
    ) -> None:
        self.patience_s = patience_s
        self._max_starting = max_starting or 2 * (os.cpu_count() or 1)
        self._max_opening = max_opening
        self._remote = asyncio.Semaphore(max_opening)
        self._local = asyncio.Semaphore(self._max_starting)
        self._servers: dict[tuple[object, ...], ServerTraffic] = {}

    def of(self, server: ToolServer) -> "ServerTraffic":
        known = self._servers.get(server.key)
        if known is None:
            place = self._local if server.url is None else self._remote
            known = self._servers[server.key] = ServerTraffic(server, place, self.patience_s)
        return known

    @property
    def opening(self) -> int:
        """Sessions being opened, or waiting for that."""
        return sum(server.opening for server in self._servers.values())

    def away(self) -> "list[ServerTraffic]":
        """Servers with which no session can be opened now."""
        return [server for server in self._servers.values() if not server.circuit.is_closed]

    def has_room(self) -> bool:
        """Whether one more episode would find all servers ready: none is paused, and few sessions wait to be opened.

        One episode at a time tries an unavailable server.
        """
        away = self.away()
        if any(server.circuit.rest_s() > 0 or server.opening for server in away):
            return False
        return all(
            server.opening < (self._max_starting if server.server.url is None else self._max_opening)
            for server in self._servers.values()
        )

    def alarms(self) -> list[str]:
        """A sentence for every unavailable server."""
        return [server.alarm() for server in self.away()]


class ServerTraffic:
    """`Traffic` of one server."""

    def __init__(self, server: ToolServer, opening: asyncio.Semaphore, patience_s: float) -> None:
        self.server = server
        self.circuit = Circuit()
        self.opening = 0
        self._opening = opening
        self._patience_s = patience_s
        self._listening = 0
        most = server.max_connections
        quarter = max(1, (most or 0) // 4)
        self._max_listening = min(MAX_LISTENING, quarter) if most else MAX_LISTENING
        # Over SSE every session holds a connection for its lifetime; its calls are short requests.
        held = (most // 2 if server.transport == "sse" else self._max_listening) if most else 0
        self._short = _Places(quarter if most else None)
        self._sessions = _Places(held if server.transport == "sse" and most else None)
        self.ends = Ends()
        self.process = SharedProcess()  # of a server whose entry has `shared`
        self._calls = _Places(max(1, most - quarter - held - quarter // 2) if most else None)

    # ------------------------------------------------------------------ sessions

    async def open(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, called once the server permits a session. Raises ToolServerUnavailable.

        `attempt` is called again after a failure, within the patience; it must clean up after itself.
        """
        self.opening += 1
        try:
            return await self._open(attempt)
        finally:
            self.opening -= 1

    async def _open(self, attempt: Callable[[], Awaitable[T]]) -> T:
        patience = _Patience(self._patience_s)
        while True:
            async with contextlib.AsyncExitStack() as places:
                async with queued(self._opening_wait()):
                    await self._turn(patience)
                    await places.enter_async_context(self._short.place())
                    await places.enter_async_context(self._opening)
                if not self.circuit.enter():
                    continue  # it closed while this one waited for a place
                generation = self.circuit.generation
                try:
                    opened = await attempt()
                except ToolFailure as exc:
                    self._note(generation, exc)
                    patience.failed(exc)
                except BaseException:  # cancelled too: the trial's place must become free
                    self.circuit.left()
                    raise
                else:
                    self.circuit.opened()
                    return opened

    def _opening_wait(self) -> Wait:
        name, limit = (
            f"a session with tool server {self.server.name}",
            f"for {self._patience_s:g} s at most (tool_wait_s)",
        )
        if self.circuit.is_closed:
            return Wait(
                name, "as many are opened now as may be at once", "one of them is open, each within tool_open_s"
            )
        return Wait(
            name,
            f"no session with it can be opened ({clipped(self.circuit.why, _MAX_TOLD_CHARS)})",
            f"one can, {limit}",
        )

    async def _turn(self, patience: "_Patience") -> None:
        """Wait while the server is unavailable. Raises ToolServerUnavailable."""
        while not self.circuit.is_closed:
            rest_s, remaining_s = self.circuit.rest_s(), patience.left_s()
            if remaining_s <= 0 or rest_s > remaining_s:
                raise ToolServerUnavailable(str(patience.error or self.circuit.why)) from patience.error
            if rest_s == 0 and not self.circuit.is_tried:
                return
            await self.circuit.changed(remaining_s)

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """A place for a session that holds a connection; limited only for SSE servers with `max_connections`."""
        try:
            async with asyncio.timeout(None if self._patience_s == 0 else self._patience_s) as waiting:
                await self._sessions.take()
                waiting.reschedule(None)
        except TimeoutError as exc:
            raise ToolServerUnavailable(
                f"tool server {self.server.name} ({self.server.address}): all of its {self.server.max_connections} "
                f"connections were in use for {self._patience_s:g} s"
            ) from exc
        try:
            yield
        finally:
            self._sessions.give_back()

    def calling(self) -> AbstractAsyncContextManager[None]:
        """A place for one call. The call's own time-out starts after it."""
        return self._calls.place()

    def failed(self, generation: int, exc: ToolFailure) -> None:
        """Record that a call failed in a session opened in `generation` of the circuit. A failed stdio process proves nothing
        about other sessions."""
        if self.server.url is not None:
            self._note(generation, exc)

    def _note(self, generation: int, exc: ToolFailure) -> None:
        cause = exc.__cause__
        if isinstance(cause, ServerBusy):
            self.circuit.busy(generation, cause.wait_s, str(exc))
        else:
            self.circuit.failed(generation, str(exc))

    # ------------------------------------------------------------------ streams

    def listen(self) -> bool:
        """Whether one more session may hold a listening stream; release it with `stop_listening`."""
        if self._listening >= self._max_listening:
            return False
        self._listening += 1
        return True

    def stop_listening(self) -> None:
        self._listening -= 1

    # ------------------------------------------------------------------ for people

    def alarm(self) -> str:
        circuit = self.circuit
        next_try = "now" if circuit.is_tried or circuit.rest_s() == 0 else f"in {circuit.rest_s():.0f} s"
        why = clipped(circuit.why, _MAX_TOLD_CHARS)
        return (
            f"no session with tool server {self.server.name} for {circuit.away_s():.0f} s ({why}); episodes wait, "
            f"and no failure is counted; the next try: {next_try}"
        )


class _Patience:
    """How long one opening still waits for an unavailable server; starts when the server is first found unavailable."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end: float | None = None
        self.error: ToolFailure | None = None

    def failed(self, exc: ToolFailure) -> None:
        self.error = exc
        self.left_s()

    def left_s(self) -> float:
        now = time.monotonic()
        self._end = now + self._seconds if self._end is None else self._end
        return self._end - now


class _Places:
    """A bounded number of places; None: unbounded."""

    def __init__(self, most: int | None) -> None:
        self._free = None if most is None else asyncio.Semaphore(most)

    async def take(self) -> None:
        if self._free is not None:
            async with queued(Wait("a connection to a tool server", "all are in use (max_connections)", "a call ends")):
                await self._free.acquire()

    def give_back(self) -> None:
        if self._free is not None:
            self._free.release()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        await self.take()
        try:
            yield
        finally:
            self.give_back()
