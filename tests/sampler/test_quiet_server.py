"""The HTTP server of the gateways, also where other programs' faster parser is installed."""

import asyncio
import contextlib
import importlib.util
import socket
from typing import Any

from sampler.quiet_server import QuietServer

MOST_BYTES = 8 * 1024 * 1024  # h11 refuses at 64 KiB; a socket's buffers hold some more


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_a_request_whose_headers_do_not_end_is_refused() -> None:
    assert importlib.util.find_spec("httptools") is not None, "uvicorn prefers it, and it has no bound"
    listening = socket.create_server(("127.0.0.1", 0))
    server = QuietServer(nothing, log_level="critical")
    serving = asyncio.create_task(server.serve([listening]))
    _, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < MOST_BYTES and not writer.is_closing():
            line = b"X-%d: " % sent + b"a" * 60_000 + b"\r\n"
            writer.write(line)
            await writer.drain()
            sent += len(line)
    assert sent < MOST_BYTES
    writer.close()
    server.should_exit = True
    await serving
