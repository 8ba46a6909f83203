"""An episode's connection to one server, replaced after a transport failure if that is safe.

A call is repeated only if its tool is declared idempotent, its transport failed (a time-out does not count), and this session
has called only read-only tools: then a new session equals the lost one. In all other cases a server failure ends the attempt
at the episode.

Blame: if no session can be opened, or a remote server is unreachable or busy, the episode is not at fault
(`ToolServerUnavailable`). A call in progress during a server crash may have caused it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2
from mcp_types import CallToolResult

from sampler.core.errors import ToolServerDied, ToolServerUnavailable
from sampler.core.tools.catalog import ToolCatalog
from sampler.core.tools.connection import Connection
from sampler.core.tools.limits import ToolLimits
from sampler.core.tools.manager import ManagerConnection
from sampler.core.tools.offered import OfferedTool, ToolConnection
from sampler.core.tools.own_ends import answer_of
from sampler.core.tools.shared_process import SharedConnection
from sampler.core.tools.traffic import Traffic
from shared.mcp.busy import Line, ServerBusy
from shared.mcp.servers import ToolServer

log = logging.getLogger(__name__)


class Link:
    def __init__(self, server: ToolServer, limits: ToolLimits, catalog: ToolCatalog, traffic: Traffic) -> None:
        self.server = server
        self._limits = replace(limits, open_s=server.open_s or limits.open_s)
        self._catalog = catalog
        self._traffic = traffic.of(server)
        self._generation = 0  # of the server's circuit, when the connection was opened
        self._failed = False
        self._place = contextlib.AsyncExitStack()  # the link's place among the server's sessions
        self._connection = self._new_connection()
        self._reopening: asyncio.Task[None] | None = None
        self._num_writes = 0  # calls of tools that are not read-only
        self._closed = False
        self.own_ends: list[str] = []  # how the server's own process ended by this episode's calls
        self._calls = 0  # of the connection
        self._is_counted = False  # among the open ones of the server

    async def open(self) -> list[OfferedTool]:
        """Connect and return the server's tools. Raises ToolServerUnavailable."""
        await self._place.enter_async_context(self._traffic.session())
        return await self._traffic.open(self._open)

    async def list_anew(self) -> list[OfferedTool]:
        """The current tools of the connected server. Raises ToolFailure."""
        self._catalog.forget(self._connection)
        return await self._catalog.tools_of(self._connection)

    async def call(
        self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float | None = None
    ) -> tuple[CallToolResult, int]:
        """The answer, and the number of repetitions. Raises ToolFailure."""
        bound_s = (
            timeout_s or self.server.call_timeout_s(f"{tool.server}.{tool.name}", tool.name) or self._limits.call_s
        )
        if len(self.own_ends) > self._limits.max_restarts > 0:
            return answer_of(self.own_ends[-1], in_call=False, is_over=True, times=len(self.own_ends)), 0
        own_writes = int(not tool.read_only)
        self._num_writes += own_writes
        retries = 0
        while True:
            connection = self._connection
            try:
                async with self._traffic.calling():
                    self._calls += 1
                    answer = await connection.call(tool, arguments, bound_s)
                self._traffic.circuit.answered()
                return answer, retries
            except ToolServerDied as exc:
                self._failed = True
                if not exc.ended:  # the end of an episode's own process proves nothing about other sessions
                    self._traffic.failed(self._generation, exc)
                may_retry = tool.idempotent and self._num_writes == own_writes and not self._closed
                if not may_retry or retries >= self._limits.max_retries:
                    if await self._is_own_end(exc):
                        return await self._restarted(connection, exc), retries
                    if _never_arrived(exc):
                        raise ToolServerUnavailable(str(exc)) from exc
                    raise
                log.info("tool call repeated server=%s tool=%s: %s", self.server.name, tool.name, exc)
                await asyncio.sleep(self._limits.retry_delay_s * 2.0**retries)
                retries += 1
                await self._replace(connection, last=retries >= self._limits.max_retries)

    async def _is_own_end(self, exc: ToolServerDied) -> bool:
        """Whether this episode's calls are the likely cause (`own_ends`)."""
        if not exc.ended or self._closed or not self._limits.max_restarts:
            return False
        return (exc.in_call or self._calls > 1) and await self._traffic.ends.is_single()

    async def _restarted(self, ended: ToolConnection, exc: ToolServerDied) -> CallToolResult:
        """What the model is told; calls that ended together count once. Raises ToolServerUnavailable if no process starts."""
        if self._connection is ended and self._reopening is None:
            self.own_ends.append(exc.ended)
            log.warning("a call ended its tool server server=%s times=%d %s", self.server.name, len(self.own_ends), exc)
        is_over = len(self.own_ends) > self._limits.max_restarts
        if not is_over:
            await self._replace(ended, last=True)
            self._failed, self._num_writes, self._calls = False, 0, 0
        return answer_of(exc.ended, in_call=exc.in_call, is_over=is_over, times=len(self.own_ends))

    async def close(self) -> None:
        """End the session; bounded by the limits."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait({self._reopening}, timeout=self._limits.close_s)
        await self._connection.close()
        if self._connection.line.is_open and not self._failed:
            self._traffic.circuit.answered()
        self._traffic.ends.open -= self._is_counted
        self._is_counted = False
        await self._place.aclose()

    async def _replace(self, failed: ToolConnection, *, last: bool) -> None:
        """Open another connection in place of `failed`, shared by calls that failed together. A refusal counts if `last`."""
        if self._connection is not failed or self._closed:
            return
        if self._reopening is None:
            self._reopening = asyncio.create_task(self._reopen(failed), name=f"mcp reopen {self.server.name}")
        try:
            await asyncio.shield(self._reopening)
        except ToolServerUnavailable:
            if last:
                raise
        finally:
            if self._reopening is not None and self._reopening.done():
                self._reopening = None

    async def _reopen(self, failed: ToolConnection) -> None:
        await failed.close()
        await self._traffic.open(self._open)

    async def _open(self) -> list[OfferedTool]:
        """One attempt. Raises ToolFailure, and then leaves nothing open."""
        generation, connection = self._traffic.circuit.generation, self._new_connection()
        try:
            await connection.open()
            tools = await self._catalog.tools_of(connection)
        except BaseException:  # cancelled too: leave nothing half-open
            await asyncio.shield(connection.close())
            raise
        connection.line.is_open = True
        self._traffic.ends.open += not self._is_counted
        self._is_counted = True
        self._generation, self._connection = generation, connection
        return tools

    def _new_connection(self) -> ToolConnection:
        line = Line(self._traffic)
        connection: ToolConnection
        if self.server.shared:
            connection = SharedConnection(self.server, self._limits, line, self._traffic.process)
        else:
            kind = ManagerConnection if self.server.transport == "mcpapi" else Connection
            connection = kind(self.server, self._limits, line)
        connection.on_list_changed = lambda: self._catalog.forget(connection)
        return connection


def _never_arrived(exc: ToolServerDied) -> bool:
    """The server was unreachable, or rejected the request unprocessed."""
    return isinstance(exc.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout | ServerBusy)
