"""A real MCP server that knows 2026-07-28 alone: `native_talker.py NAME` over stdio, `native_talker.py NAME PORT` over HTTP.

Its results ask for input (`input_required`). Their state is sealed with a key of this process, as the SDK does by itself.
"""

import sys
from typing import Any

from mcp.server import MCPServer, runner
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    SubscriptionsListenRequestParams,
    TextContent,
)
from starlette.responses import Response
from talker_tools import add_tools

name = sys.argv[1]
bus = InMemorySubscriptionBus()
listens = ListenHandler(bus)
server = MCPServer(name, instructions=f"I am {name}.", log_level="ERROR", subscriptions=bus)
server._lowlevel_server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, listens)
seen = {"rounds": 0}
notes = [f"note of {name}"]
only = add_tools(server, name, notes)
Asks = InputRequiredResult
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def question(text: str) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=text, requested_schema=AGE))


def sampling(text: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=10))


@server.tool()
async def ask_user(ctx: Context) -> str | InputRequiredResult:
    """Ask the client's user, with a state."""
    answers = ctx.input_responses
    if ctx.request_state != "asked" or not answers:
        return Asks(input_requests={"how_old": question("How old?")}, request_state="asked")
    given = answers["how_old"]
    return f"{name}: {given.action} {given.content}"


@server.tool()
async def ask_all(ctx: Context, topic: str) -> str | InputRequiredResult:
    """Ask the client's user, model and folders at the same time."""
    answers = ctx.input_responses
    if not answers:
        wanted = {"user": question(topic), "model": sampling(topic), "folders": ListRootsRequest()}
        return Asks(input_requests=wanted)
    return f"{answers['user'].content['age']} {answers['model'].content.text} {answers['folders'].roots[0].uri}"


@server.tool()
async def three_rounds(ctx: Context) -> str | InputRequiredResult:
    """Ask for one age after the other; the state is what was learned."""
    known = (ctx.request_state or "").removeprefix("begun")
    if ctx.input_responses:
        known += f"{ctx.input_responses['age'].content['age']},"
    if known.count(",") == 3:
        return known
    return Asks(input_requests={"age": question(f"Age {known.count(',')}?")}, request_state=known or "begun")


@server.tool()
async def again_and_again(ctx: Context) -> InputRequiredResult:
    """Never answer."""
    seen["rounds"] += 1
    return Asks(request_state=f"round {seen['rounds']}")


@server.tool()
async def rounds() -> int:
    """How often `again_and_again` was called."""
    return seen["rounds"]


@server.prompt()
async def asking(ctx: Context) -> str | InputRequiredResult:
    """A prompt that asks for input."""
    if not ctx.input_responses:
        return Asks(input_requests={"age": question("For the prompt?")})
    return f"prompted at {ctx.input_responses['age'].content['age']}"


@server.tool()
async def log_it(ctx: Context, text: str) -> str:
    """Log to the client."""
    await ctx.info(text)
    return "logged"


@server.tool()
async def episode(ctx: Context) -> str:
    """What the gateway says of the episode."""
    return str((ctx.request_context.meta or {}).get("tandem/episode-id"))


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(only, name=f"grown_{name}")
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
async def write_note(ctx: Context, text: str) -> str:
    """Change the note, and tell those who listen for it."""
    notes[0] = text
    await ctx.notify_resource_updated(f"note://{name}/one")
    return "written"


@server.tool()
async def stop_listening() -> str:
    """End all listening streams."""
    listens.close()
    return "ended"


async def modern_alone(server: Any, read: Any, write: Any, **given: Any) -> None:
    kept = {key: given[key] for key in ("lifespan_state", "raise_exceptions")}
    await runner._serve_modern_stream(server, read, write, **kept)


async def refuse_sessions(self: Any, scope: Any, receive: Any, send: Any) -> None:
    await Response("there are no sessions here", status_code=400)(scope, receive, send)


# The SDK's servers also serve the older revisions; this one refuses the handshake as the SDK refuses it on a modern connection.
runner._serve_legacy_stream = modern_alone  # type: ignore[assignment]  # replaced for this test
StreamableHTTPSessionManager._handle_stateful_request = refuse_sessions  # type: ignore[method-assign]  # replaced for this test

if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.settings.log_level = "INFO"
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
