"""The tools of one episode: one MCP session per server, names made unique, an allow-list, bounded results.

    session = ToolSession(servers, allow=["search"])
    await session.open()                        # all servers at once; the first failure closes the rest
    schemas = session.list_tools()              # OpenAI function schemas, in a fixed order
    result = await session.call("search", {"query": "…"}, timeout_s=30)
    await session.close()

Promise: what a tool *says*, errors included, is a `ToolResult`; what happens *to* a tool (its server dies, hangs, loses
the session) is a `ToolFailure`, which is never scored.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mcp import MCPError
from mcp_types import INVALID_PARAMS, Tool

from sampler.errors import ToolServerDied
from sampler.tools.connection import Connection, ToolLimits
from sampler.tools.results import ToolResult, bounded, to_result
from sampler.tools.servers import ToolServer
from shared.errors import ConfigError

log = logging.getLogger(__name__)

__all__ = ["ToolCatalog", "ToolLimits", "ToolSession"]

# JSON-RPC reserves these codes for the protocol; any other is the tool's own answer. Of the protocol's, only
# INVALID_PARAMS is about what the model asked for.
_PROTOCOL_CODES = range(-32768, -31999)


class ToolCatalog:
    """Tool lists by server, shared by the episodes of a process, so that not each one asks again.

    For servers whose list does not depend on the session. `max_age_s=0` asks every time.
    """

    def __init__(self, max_age_s: float = 300.0) -> None:
        self._max_age_s = max_age_s
        self._lists: dict[tuple[object, ...], tuple[float, list[Tool]]] = {}

    async def tools_of(self, connection: Connection) -> list[Tool]:
        key = connection.server.key
        known = self._lists.get(key)
        if known and time.monotonic() - known[0] < self._max_age_s:
            return known[1]
        tools = await connection.list_tools()
        self._lists[key] = (time.monotonic(), tools)
        return tools


@dataclass(frozen=True, slots=True)
class _Entry:
    connection: Connection
    tool: Tool


class ToolSession:
    """`allow`: names, as `list_tools` gives them, that this episode may use; None allows all."""

    def __init__(
        self,
        servers: Sequence[ToolServer],
        allow: Collection[str] | None = None,
        limits: ToolLimits | None = None,
        catalog: ToolCatalog | None = None,
    ) -> None:
        self._limits = limits or ToolLimits()
        self._catalog = catalog or ToolCatalog(max_age_s=0)
        self._allow = None if allow is None else list(allow)
        self._connections = [Connection(server, self._limits) for server in servers]
        self._entries: dict[str, _Entry] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect to every server and list its tools. Raises ToolFailure, or ConfigError for an unknown allowed name."""
        try:
            opening = (self._open_one(connection) for connection in self._connections)
            outcomes = await asyncio.gather(*opening, return_exceptions=True)
            if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
                raise failures[0]
            listed = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
            self._entries = self._allowed(_unique_names(self._connections, listed))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all sessions; bounded by the limits."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def list_tools(self) -> list[dict[str, Any]]:
        """OpenAI function schemas: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": entry.tool.description or "",
                    "parameters": entry.tool.input_schema,
                },
            }
            for name, entry in self._entries.items()
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float | None = None) -> ToolResult:
        """Call a tool. Unknown names and refused arguments are answers (`is_error`); ToolFailure is plumbing."""
        began = time.monotonic()
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(self._entries) or "none"
            return bounded(f"unknown tool {name!r}; available: {known}", True, 0.0, self._limits.max_result_chars)
        try:
            answer = await entry.connection.call(entry.tool.name, arguments, timeout_s or self._limits.call_s)
        except MCPError as exc:
            if exc.code in _PROTOCOL_CODES and exc.code != INVALID_PARAMS:
                server = entry.connection.server
                raise ToolServerDied(f"tool server {server.name} ({server.address}), tool {name}: {exc}") from exc
            return bounded(str(exc), True, time.monotonic() - began, self._limits.max_result_chars)
        return to_result(answer, time.monotonic() - began, self._limits.max_result_chars)

    async def _open_one(self, connection: Connection) -> list[Tool]:
        await connection.open()
        return await self._catalog.tools_of(connection)

    def _allowed(self, entries: dict[str, _Entry]) -> dict[str, _Entry]:
        if self._allow is None:
            return entries
        if missing := [name for name in self._allow if name not in entries]:
            raise ConfigError(f"tool {missing[0]!r} is not offered; the servers offer {', '.join(entries) or 'none'}")
        return {name: entry for name, entry in entries.items() if name in self._allow}


def _unique_names(connections: Sequence[Connection], listed: Sequence[Sequence[Tool]]) -> dict[str, _Entry]:
    """Names as the tools have them; those that several servers use get `server_` in front."""
    counts = Counter(tool.name for tools in listed for tool in tools)
    entries: dict[str, _Entry] = {}
    for connection, tools in zip(connections, listed, strict=True):
        prefix = re.sub(r"\W", "_", connection.server.name)
        for tool in tools:
            name = f"{prefix}_{tool.name}" if counts[tool.name] > 1 else tool.name
            if name in entries:
                raise ConfigError(f"two tools are named {name!r}; rename a server in the mcpServers JSON")
            entries[name] = _Entry(connection, tool)
    return entries
