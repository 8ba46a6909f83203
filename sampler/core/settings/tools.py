"""Settings of tool servers and their sessions. Guide: docs/bring/tools.md."""

from typing import Annotated

from pydantic import Field

from sampler.core.tools.isolation import Sandbox
from shared.configuration.sections import Section

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class ToolSettings(Section):
    """Tool servers, and the sessions with them."""

    mcp_manager_url: str | None = Field(
        None,
        description="Tool servers: a URL (ending in /sse: HTTP+SSE; in /mcpapi: a manager; else streamable HTTP) or an "
        "mcpServers JSON. None: no tools.",
    )
    tool_user: str | None = Field(
        None,
        description="Run tool servers over stdio, and agent_command, as this user (needs root). None: this process's user.",
    )
    tool_sandbox: Sandbox = Field(
        "off",
        description="bubblewrap: isolate stdio tool servers and agent_command from other processes, and drop capabilities. "
        "Files and network stay.",
    )
    tool_timeout_s: Seconds = Field(
        60.0, description="One tool call without progress; then it is an infrastructure failure."
    )
    tool_open_s: Seconds = Field(
        30.0,
        description="Time-out for opening a session and listing its tools; then the server counts as unavailable for a while.",
    )
    tool_wait_s: Seconds = Field(
        30.0,
        description="Time an episode waits for an unavailable tool server; then its slot is released, and no failure is counted.",
    )
    max_opening_sessions: Positive = Field(
        64, description="Maximum sessions with remote tool servers that are being opened at once; further ones wait."
    )
    max_starting_servers: Positive | None = Field(
        None, description="Maximum stdio tool servers that start at once. None: two per core."
    )
