"""A tool as the rest of the sampler sees it, of any protocol, and what a connection must do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mcp_types import CallToolResult, Tool

from sampler.tools.busy import Line
from sampler.tools.servers import ToolServer


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """`server`: its name in the mcpServers JSON, or the manager's name of it. `idempotent`: a repeated call does no harm."""

    server: str
    name: str
    description: str
    parameters: Mapping[str, Any]
    read_only: bool = False
    idempotent: bool = False

    @property
    def identity(self) -> tuple[str, str]:
        """Server and own name: what identifies a tool; other servers' tools do not change it."""
        return self.server, self.name

    @classmethod
    def from_mcp(cls, server: ToolServer, tool: Tool) -> "OfferedTool":
        """The hints are the server's word; `idempotent_tools` of the configuration is the user's."""
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
    """One session with one server. After a death every call raises ToolServerDied at once.

    `on_list_changed` is called whenever the server says that its list of tools is another one now; `num_list_changes`
    counts that.
    """

    server: ToolServer
    line: Line
    num_list_changes: int
    on_list_changed: Callable[[], None]

    async def open(self) -> None:
        """Connect. Raises ToolFailure; nothing stays open then."""

    async def list_tools(self) -> list[OfferedTool]:
        """Every tool, all pages. Raises ToolFailure."""

    async def call(self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """One call. What the tool or the server answers, errors included, is a result; else ToolFailure."""

    async def close(self) -> None:
        """End the session, within the limits. Never raises for what the server does."""
