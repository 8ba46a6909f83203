"""A real MCP server for tests: `box.py stdio`, or `box.py http` (prints its port on the first line).

--port N        that port
--sse           answers calls over a stream of events
--busy FILE     is too busy for a POST as long as FILE has lines: each, "STATUS [RETRY_AFTER]", is the answer to one
--oauth         asks for a token of the authorization server in `oauth.py`
"""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from oauth import OAuth
from starlette.requests import Request
from starlette.responses import Response

server = MCPServer("box", log_level="WARNING")
counters: dict[object, int] = {}
of_slow = {"running": 0, "cancelled": 0}
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
    """A counter per session, or per episode if the protocol has no sessions."""
    request = ctx.request_context.request
    headers = request.headers if request is not None else {}
    key = headers.get("mcp-session-id") or headers.get("tandem-episode-id")
    counters[key] = counters.get(key, 0) + 1
    told = (ctx.request_context.meta or {}).get("tandem/episode-id")
    return {"n": counters[key], "pid": os.getpid(), "revision": ctx.protocol_version, "episode": told}


@server.tool()
async def slow(seconds: float) -> str:
    """Sleep."""
    of_slow["running"] += 1
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        of_slow["cancelled"] += 1
        raise
    finally:
        of_slow["running"] -= 1
    return "done"


@server.tool()
async def freeze(seconds: float) -> str:
    """Sleep, and answer nothing else meanwhile."""
    time.sleep(seconds)  # noqa: ASYNC251 - stops the event loop, so that a ping has no answer either
    return "done"


@server.tool()
async def calls_of_slow() -> dict[str, int]:
    """The numbers of running and cancelled calls."""
    return of_slow


@server.tool()
async def crash() -> str:
    """End the server at once."""
    os._exit(3)


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on, and announce it."""
    server.add_tool(echo, name=f"grown_{len(listed)}")
    listed.append(0)
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.tool()
def crash_once(path: str) -> str:
    """End the server, unless the file is there already."""
    file = Path(path)
    if not file.exists():
        file.touch()
        os._exit(3)
    return "survived"


@server.tool()
async def refuse(reason: str) -> str:
    """Answer with an error."""
    raise ToolError(reason)


@server.tool()
async def big(n_chars: int) -> str:
    """A long text: digits that end in END."""
    return ("0123456789" * (n_chars // 10 + 1))[: n_chars - 3] + "END"


class Guard:
    """Requires a bearer token."""

    def __init__(self, app: Any, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and Request(scope).headers.get("authorization") != f"Bearer {self.token}":
            await Response(status_code=401)(scope, receive, send)
            return
        await self.app(scope, receive, send)


class Busy:
    """Refuses as many POST requests as a file specifies."""

    def __init__(self, app: Any, file: Path) -> None:
        self.app = app
        self.file = file

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and (refusals := self.file.read_text().splitlines()):
            self.file.write_text("\n".join(refusals[1:]))
            status, *wait = refusals[0].split(maxsplit=1)
            await Response(status_code=int(status), headers={"Retry-After": wait[0]} if wait else {})(
                scope, receive, send
            )
            return
        await self.app(scope, receive, send)


def main() -> None:
    if sys.argv[1] == "stdio":
        server.run("stdio")
        return
    app: Any = server.streamable_http_app(json_response="--sse" not in sys.argv)
    if token := os.environ.get("BOX_TOKEN"):
        app = Guard(app, token)
    if "--oauth" in sys.argv:
        app = OAuth(app)
    if "--busy" in sys.argv:
        app = Busy(app, Path(sys.argv[sys.argv.index("--busy") + 1]))
    port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 0
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
