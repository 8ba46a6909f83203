"""One server's place in an episode: its connection, and another one after a transport failure where that changes nothing.

A call is repeated only if its tool is declared idempotent and its transport failed (a time-out is no such failure), and only
while nothing but read-only tools has been called in this session: then a new session is as good as the lost one. In every
other case the death of a server is the end of the attempt at the episode.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from sampler.errors import ToolServerDied
from sampler.tools.catalog import ToolCatalog
from sampler.tools.connection import Connection
from sampler.tools.limits import ToolLimits
from sampler.tools.manager import ManagerConnection
from sampler.tools.offered import OfferedTool, ToolConnection
from sampler.tools.servers import ToolServer

log = logging.getLogger(__name__)


class Link:
    def __init__(self, server: ToolServer, limits: ToolLimits, catalog: ToolCatalog) -> None:
        self.server = server
        self._limits = limits
        self._catalog = catalog
        self._connection = self._new_connection()
        self._reopening: asyncio.Task[None] | None = None
        self._num_writes = 0  # calls of tools that are not read-only
        self._closed = False

    async def open(self) -> list[OfferedTool]:
        """Connect; the server's tools. Raises ToolFailure."""
        await self._connection.open()
        return await self._catalog.tools_of(self._connection)

    async def list_anew(self) -> list[OfferedTool]:
        """The tools of the open connection's server, as it says now. Raises ToolFailure."""
        self._catalog.forget(self._connection)
        return await self._catalog.tools_of(self._connection)

    async def call(
        self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float | None = None
    ) -> tuple[CallToolResult, int]:
        """The answer, and how often the call was repeated. Raises ToolFailure."""
        bound_s = (
            timeout_s or self.server.call_timeout_s(f"{tool.server}.{tool.name}", tool.name) or self._limits.call_s
        )
        own_writes = int(not tool.read_only)
        self._num_writes += own_writes
        retries = 0
        while True:
            connection = self._connection
            try:
                return await connection.call(tool, arguments, bound_s), retries
            except ToolServerDied as exc:
                may_retry = tool.idempotent and self._num_writes == own_writes and not self._closed
                if not may_retry or retries >= self._limits.max_retries:
                    raise
                log.info("tool call repeated server=%s tool=%s: %s", self.server.name, tool.name, exc)
                await asyncio.sleep(self._limits.retry_delay_s * 2.0**retries)
                retries += 1
                await self._replace(connection, last=retries >= self._limits.max_retries)

    async def close(self) -> None:
        """End the session; bounded by the limits."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait({self._reopening}, timeout=self._limits.close_s)
        await self._connection.close()

    async def _replace(self, failed: ToolConnection, *, last: bool) -> None:
        """Open another connection in place of `failed`; calls that failed together share one. A refusal counts if `last`."""
        if self._connection is not failed or self._closed:
            return
        if self._reopening is None:
            self._reopening = asyncio.create_task(self._reopen(failed), name=f"mcp reopen {self.server.name}")
        try:
            await asyncio.shield(self._reopening)
        except ToolServerDied:
            if last:
                raise
        finally:
            if self._reopening is not None and self._reopening.done():
                self._reopening = None

    async def _reopen(self, failed: ToolConnection) -> None:
        await failed.close()
        connection = self._new_connection()
        await connection.open()
        self._connection = connection

    def _new_connection(self) -> ToolConnection:
        kind = ManagerConnection if self.server.transport == "mcpapi" else Connection
        connection: ToolConnection = kind(self.server, self._limits)
        connection.on_list_changed = lambda: self._catalog.forget(connection)
        return connection
