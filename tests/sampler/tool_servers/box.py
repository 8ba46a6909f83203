"""A real MCP server for tests: `box.py stdio`, or `box.py http` (prints its port on the first line)."""

import asyncio
import os
import socket
import sys
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("box", log_level="WARNING")
counters: dict[object, int] = {}
cancelled: list[float] = []
listed: list[int] = []


@server.tool()
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
async def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@server.tool()
async def bump(ctx: Context) -> dict[str, Any]:
    """A counter per session."""
    request = ctx.request_context.request
    key = request.headers.get("mcp-session-id") if request is not None else None
    counters[key] = counters.get(key, 0) + 1
    return {"n": counters[key], "pid": os.getpid()}


@server.tool()
async def slow(seconds: float) -> str:
    """Sleep."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(seconds)
        raise
    return "done"


@server.tool()
async def how_many_cancelled() -> int:
    """Calls of `slow` that were cancelled."""
    return len(cancelled)


@server.tool()
async def how_many_sessions() -> int:
    """Sessions that ever bumped."""
    return len(counters)


@server.tool()
async def crash() -> str:
    """End the server at once."""
    os._exit(3)


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on, and say so."""
    server.add_tool(echo, name=f"grown_{len(listed)}")
    listed.append(0)
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
async def picture(n_bytes: int) -> list[Any]:
    """Structured content alone, or with an image."""
    return [ImageContent(type="image", mime_type="image/png", data=base64.b64encode(bytes(n_bytes)).decode())]


@server.tool()
async def crash_once(path: str, ctx: Context) -> str:
    """End the server, unless the file is there already: then say so."""
    if os.path.exists(path):
        return "survived"
    open(path, "w").close()
    os._exit(3)


@server.tool()
async def refuse(reason: str) -> str:
    """Answer with an error."""
    raise ToolError(reason)


@server.tool()
async def big(n_chars: int) -> str:
    """A long text: digits that end in END."""
    return ("0123456789" * (n_chars // 10 + 1))[: n_chars - 3] + "END"


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    app = server.streamable_http_app(json_response="--sse" not in sys.argv)
    port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
