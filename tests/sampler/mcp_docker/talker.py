"""A real MCP server over stdio that uses everything that servers may: `talker.py NAME`."""

import asyncio
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import SamplingMessage, TextContent
from pydantic import BaseModel

name = sys.argv[1]
server = MCPServer(name, instructions=f"I am {name}.", log_level="ERROR")
seen = {"waiting": 0, "cancelled": 0}


class Person(BaseModel):
    age: int


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
async def cancellations() -> int:
    """How many calls were cancelled."""
    return seen["cancelled"]


@server.tool()
async def waits() -> int:
    """How many calls of `wait` have begun."""
    return seen["waiting"]


@server.tool()
async def ask_model(ctx: Context, question: str) -> str:
    """Ask the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    answer = await ctx.session.create_message([message], max_tokens=10)
    return f"{name} was told {answer.content.text}"


@server.tool()
async def ask_user(ctx: Context) -> str:
    """Ask the client's user."""
    answer = await ctx.elicit("How old?", Person)
    return f"{name}: {answer.action} {getattr(answer, 'data', None)}"


@server.tool()
async def roots(ctx: Context) -> str:
    """The client's folders."""
    return ",".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def log_it(ctx: Context, text: str) -> str:
    """Log to the client."""
    await ctx.session.send_log_message("info", text)
    return "logged"


@server.tool(name=f"only_{name}")
async def only() -> str:
    """A name that is unique."""
    return name


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(only, name=f"grown_{name}")
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.resource(f"note://{name}/one")
def note() -> str:
    return f"note of {name}"


@server.resource(f"page://{name}/{{number}}")
def page(number: str) -> str:
    return f"page {number} of {name}"


@server.prompt()
def greet(who: str) -> str:
    return f"{name} greets {who}"


if __name__ == "__main__":
    server.run("stdio")
