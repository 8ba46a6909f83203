"""The tools that the talkers of every revision have: `talker.py`, `native_talker.py`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import Field


def add_tools(server: MCPServer, name: str, notes: list[str]) -> Callable[[], Awaitable[str]]:
    """Returns one of them, to be offered again by another name."""
    seen = {"waiting": 0, "cancelled": 0}

    @server.tool()
    async def count_up(ctx: Context, steps: int) -> str:
        """Report progress."""
        for step in range(steps):
            await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        return f"{steps} steps"

    @server.tool()
    async def wait(seconds: float) -> str:
        """Sleep; cancellations are counted."""
        seen["waiting"] += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            seen["cancelled"] += 1
            raise
        return "waited"

    @server.tool()
    async def waits() -> int:
        """How many calls of `wait` have begun."""
        return seen["waiting"]

    @server.tool()
    async def cancellations() -> int:
        """How many calls were cancelled."""
        return seen["cancelled"]

    @server.tool()
    async def where(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """A tool whose argument is in a header too."""
        return f"in {region}"

    @server.tool(name=f"only_{name}")
    async def only() -> str:
        """A name that is unique."""
        return name

    @server.resource(f"note://{name}/one")
    def note() -> str:
        return notes[0]

    return only
