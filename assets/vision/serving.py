"""Serves a recipe's tools over HTTP, as long as the process lives that started it. An episode is a session of MCP."""

import asyncio
import ctypes
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

_PDEATHSIG = 1  # of prctl(2)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)


def episode_of(ctx: Context) -> str:
    """Its session's id."""
    request = ctx.request_context.request
    assert request is not None, "served over HTTP"
    return str(request.headers["mcp-session-id"])


def listener() -> tuple[socket.socket, str]:
    """On a free port of the loopback address, and its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    return listening, f"http://127.0.0.1:{listening.getsockname()[1]}"


async def serve(tools: MCPServer, file: Path, further: Sequence[tuple[Any, socket.socket]] = ()) -> None:
    """Serves the tools, and `further` applications. `file`: the URL of the tools is written to it."""
    listening, url = listener()
    apps = [(tools.streamable_http_app(json_response=True, host="127.0.0.1"), listening), *further]
    async with asyncio.TaskGroup() as group:
        for app, sockets in apps:
            config = uvicorn.Config(
                app, http="h11", log_level="critical", timeout_keep_alive=75, timeout_graceful_shutdown=1
            )
            group.create_task(uvicorn.Server(config).serve([sockets]), name=f"server {sockets.getsockname()[1]}")
        unfinished = file.with_suffix(".new")
        unfinished.write_text(f"{url}/mcp\n", encoding="utf-8")
        unfinished.replace(file)
