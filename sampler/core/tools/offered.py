"""A tool of any protocol as the sampler uses it, and the interface of a connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types import CallToolResult, Tool

from shared.mcp.busy import Line
from shared.mcp.servers import ToolServer


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """`server`: its name in the mcpServers JSON or the manager. `idempotent`: repeating a call is harmless."""

    server: str
    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool = False
    idempotent: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        """Server and own name: identifies a tool independently of other servers' tools."""
        return self.server, self.name

    @classmethod
    def from_mcp(cls, server: ToolServer, tool: Tool) -> "OfferedTool":
        """Hints come from the server; `idempotent_tools` comes from the user's configuration."""
        hints = tool.annotations
        read_only = hints is not None and hints.read_only_hint is True
        repeatable = hints is not None and hints.idempotent_hint is True
        return cls(
            server=server.name,
            name=tool.name,
            description=tool.description or "",
            parameters=tool.input_schema,
            read_only=read_only,
            idempotent=read_only or repeatable or server.declares_idempotent(tool.name),
        )


class ToolConnection(Protocol):
    """One session with one server. After the session is lost, every call raises ToolServerDied at once.

    `on_list_changed` is called whenever the server reports a changed list of tools; `num_list_changes` counts these
    reports.
    """

    server: ToolServer
    line: Line
    num_list_changes: int
    on_list_changed: Callable[[], None]

    async def open(self) -> None:
        """Connect. Raises ToolFailure, and then leaves nothing open."""

    async def list_tools(self) -> list[OfferedTool]:
        """All tools, from all pages. Raises ToolFailure."""

    async def call(self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """One call. Answers of the tool or the server, errors included, are results; all else is a ToolFailure."""

    async def close(self) -> None:
        """End the session, within the limits. Never raises for server errors."""
