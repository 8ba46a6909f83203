"""The bundled example's MCP tool server: a calculator, and a registry of boxes, owners and their favorite colors.

    python assets/example/tool_server.py --transport streamable-http --port 8000     # http://127.0.0.1:8000/mcp
    python assets/example/tool_server.py --transport stdio                            # one process per client

Promise: a tool returns the entry of `world.json` or the value of the sum; any other request gives a tool error that
describes the mistake, never an exception or a guess. Prints only one line (to stderr, with the URL).
SIGTERM and SIGINT end it with status 0. Needs the packages `mcp` and `uvicorn`, and the other files of its folder.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent
from world import LookupFailed, World, calculate

# Longer than clients keep idle connections: with equal limits (uvicorn and httpx both use 5 s) the server sometimes
# closes a connection that the client is about to use, and the request is lost.
KEEP_ALIVE_S = 75
# Clients keep a listening request open for their lifetime; do not wait for them.
GRACEFUL_SHUTDOWN_S = 1
SESSION_IDLE_S = 600.0  # sessions of killed clients end after ten minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=["streamable-http", "stdio"], default="streamable-http")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0: a free port, printed at start (default 8000)")
    parser.add_argument("--world", type=Path, default=Path(__file__).with_name("world.json"), help="the registry file")
    parser.add_argument(
        "--box_delay_s",
        type=float,
        default=0.0,
        help="median seconds that box_owner takes, for trying long-tailed episodes: a box's own, log-normal (default 0)",
    )
    arguments = parser.parse_args()
    server = build_server(World.load(arguments.world), arguments.box_delay_s)
    signal.signal(signal.SIGTERM, exit_now)
    signal.signal(signal.SIGINT, exit_now)
    if arguments.transport == "stdio":
        server.run("stdio")
    else:
        serve_http(server, arguments.host, arguments.port)


def box_delay_s(box: str, median_s: float) -> float:
    """Seconds that the look-up of a box takes: log-normal with sigma 1, and always the same of a box."""
    return median_s * random.Random(box).lognormvariate(0.0, 1.0)


def build_server(world: World, median_delay_s: float = 0.0) -> MCPServer:
    server = MCPServer("example-world", log_level="WARNING")

    # Coroutines, because the SDK would run plain functions in threads.
    @server.tool(structured_output=False)
    async def calculator(expression: str) -> CallToolResult:
        """Work out a sum of whole numbers, for example 47+38, with + - * and parentheses."""
        return answer(calculate, expression)

    @server.tool(structured_output=False)
    async def box_owner(box: str) -> CallToolResult:
        """Who owns a box: from a box such as QX47 to its owner's code."""
        await asyncio.sleep(box_delay_s(box, median_delay_s))
        return answer(world.box_owner, box)

    @server.tool(structured_output=False)
    async def favorite_color(person: str) -> CallToolResult:
        """Which color a person likes: from an owner's code such as WKLM to a color."""
        return answer(world.favorite_color, person)

    return server


def answer(look_up: Callable[[str], object], value: str) -> CallToolResult:
    """The result, or an error result with exactly our text (the SDK would prefix a `ToolError`)."""
    try:
        text, is_error = str(look_up(value)), False
    except LookupFailed as error:
        text, is_error = str(error), True
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


def serve_http(server: MCPServer, host: str, port: int) -> None:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        sys.exit(f"cannot listen on {host}:{port} ({error.strerror}): choose another --port, or 0 for a free one")
    print(
        f"tools at http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/mcp",
        file=sys.stderr,
        flush=True,
    )

    app = server.streamable_http_app(json_response=True, session_idle_timeout=SESSION_IDLE_S, host=host)
    config = uvicorn.Config(
        app,
        http="h11",  # bounds a request's headers; httptools, preferred where it is installed, does not
        log_level="critical",  # it logs listening requests that are open at shutdown as errors
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
    )
    uvicorn.Server(config).run(sockets=[listener])


def exit_now(number: int, frame: FrameType | None) -> None:
    """Exit without cleanup: nothing needs saving. uvicorn first stops gracefully and then raises the signal again, for this
    handler; over stdio a regular exit would wait for the thread that reads standard input."""
    os._exit(0)


if __name__ == "__main__":
    main()
