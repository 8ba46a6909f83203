"""One process of a stdio server for all episodes of a sampler: `"shared": true` in the servers file.

For servers without state (a calculator, a clock): a process for each episode costs its start, for Python half a second to a
second of a core. Episodes have one session with it; it starts with the first of them, and ends with the last.

What one episode breaks, breaks for the others. So the end of the process counts as with a remote server: a failure of the
server, never the model's act. A call without an answer in time ends a process that answers no ping either, and the next session
starts another one.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_types import CallToolResult

from sampler.core.errors import ToolServerDied, ToolTimeout
from sampler.core.tools.connection import Connection
from sampler.core.tools.limits import ToolLimits
from sampler.core.tools.offered import OfferedTool
from shared.mcp.busy import Line
from shared.mcp.servers import ToolServer


@dataclass(eq=False)
class _Running:
    """`opening` ends when the session is open, or with the reason why it is not."""

    connection: Connection
    opening: "asyncio.Task[None]"
    users: set["SharedConnection"] = field(default_factory=set)


class SharedProcess:
    """Of one server, in one sampler."""

    def __init__(self) -> None:
        self._running: _Running | None = None

    async def enter(self, user: "SharedConnection", limits: ToolLimits) -> _Running:
        """The running process; the first user starts it. Raises ToolFailure."""
        running = self._running
        if running is None:
            # No episode's id: the session is no episode's. As many calls at once as the server takes.
            connection = Connection(replace(user.server, episode=""), limits)
            opening = asyncio.create_task(connection.open(), name=f"mcp shared open {user.server.name}")
            running = self._running = _Running(connection, opening)
            connection.on_list_changed = lambda: _notify(running)
        running.users.add(user)
        try:
            await asyncio.shield(running.opening)
        except BaseException:  # also of a cancelled episode: a user that never leaves would keep the process for ever
            await asyncio.shield(self.leave(user, running))
            raise
        return running

    async def leave(self, user: "SharedConnection", running: _Running) -> None:
        """The last user's leaving ends the process."""
        running.users.discard(user)
        if not running.users:
            self.replace(running)
            running.opening.cancel()  # no effect on an open session
            await asyncio.gather(running.opening, return_exceptions=True)
            await running.connection.close()

    def replace(self, running: _Running) -> None:
        """The next user starts another process."""
        if self._running is running:
            self._running = None


def _notify(running: _Running) -> None:
    """Each user of a changed list of tools."""
    for user in list(running.users):
        user.num_list_changes += 1
        user.on_list_changed()


class SharedConnection:
    """An episode's part in a `SharedProcess`, as `ToolConnection` promises."""

    def __init__(self, server: ToolServer, limits: ToolLimits, line: Line, process: SharedProcess) -> None:
        self.server = server
        self.line = line
        self.num_list_changes = 0
        self.on_list_changed: Callable[[], None] = lambda: None
        self._limits = limits
        self._process = process
        self._running: _Running | None = None

    async def open(self) -> None:
        """Raises ToolFailure."""
        self._running = await self._process.enter(self, self._limits)

    async def list_tools(self) -> list[OfferedTool]:
        """Raises ToolFailure."""
        return await self._used().connection.list_tools()

    async def call(self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """Raises ToolFailure."""
        running = self._used()
        try:
            return await running.connection.call(tool, arguments, timeout_s)
        except ToolServerDied as died:
            died.ended = ""  # not this episode's own process
            self._process.replace(running)
            raise
        except ToolTimeout:
            if not await running.connection.lives():
                self._process.replace(running)
                await running.connection.close()  # ends the others' calls, which it would not answer
            raise

    async def close(self) -> None:
        """Never raises for server errors."""
        if self._running is not None:
            running, self._running = self._running, None
            await self._process.leave(self, running)

    def _used(self) -> _Running:
        if self._running is None:
            raise ToolServerDied(f"tool server {self.server.name} ({self.server.address}): the session is closed")
        return self._running
