"""A real MCP server that uses everything that servers may: `talker.py NAME` over stdio, `talker.py NAME PORT` over HTTP."""

import asyncio
import sys
from typing import Any

from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import (
    INVALID_PARAMS,
    EmptyResult,
    SamplingMessage,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel
from talker_tools import add_tools

name = sys.argv[1]
server = MCPServer(name, instructions=f"I am {name}.", log_level="ERROR")
subscribed: set[str] = set()
notes = [f"note of {name}"]
only = add_tools(server, name, notes)


class Person(BaseModel):
    age: int


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
async def ask_twice(ctx: Context) -> str:
    """Ask the client's user two things at the same time."""
    answers = await asyncio.gather(*(ctx.elicit(f"How old is {who}?", Person) for who in ("she", "he")))
    return ",".join(str(answer.data.age) for answer in answers)


@server.tool()
async def ask_impatiently(ctx: Context) -> str:
    """Ask the client's user, and answer without waiting."""
    asking = asyncio.ensure_future(ctx.elicit("How old?", Person))
    await asyncio.sleep(1)
    asking.cancel()
    return "answered without you"


@server.tool()
async def write_note(ctx: Context, text: str) -> str:
    """Change the note, and tell the client if it has subscribed to it."""
    notes[0] = text
    if f"note://{name}/one" in subscribed:
        await ctx.session.send_resource_updated(f"note://{name}/one")
    return ",".join(sorted(subscribed)) or "nothing is subscribed"


@server.tool()
async def roots(ctx: Context) -> str:
    """The client's folders."""
    return ",".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def log_it(ctx: Context, text: str) -> str:
    """Log to the client."""
    await ctx.session.send_log_message("info", text)
    return "logged"


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(only, name=f"grown_{name}")
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.resource(f"page://{name}/{{number}}")
def page(number: str) -> str:
    return f"page {number} of {name}"


@server.prompt()
def greet(who: str) -> str:
    return f"{name} greets {who}"


async def subscribe(ctx: Any, params: SubscribeRequestParams) -> EmptyResult:
    if str(params.uri) != f"note://{name}/one":
        raise MCPError(INVALID_PARAMS, f"there is no {params.uri}")
    subscribed.add(str(params.uri))
    return EmptyResult()


async def unsubscribe(ctx: Any, params: UnsubscribeRequestParams) -> EmptyResult:
    subscribed.discard(str(params.uri))
    return EmptyResult()


server._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
server._lowlevel_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)

if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.settings.log_level = "INFO"
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
