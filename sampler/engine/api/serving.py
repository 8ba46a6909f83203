"""Serves the routes of an engine program until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

from starlette.applications import Starlette

from shared.http.listening import in_url
from shared.http.server import HttpServer
from shared.processes.signals import ending_signals

log = logging.getLogger(__name__)

SHUTDOWN_S = 3


async def serve_until_signal(app: Starlette, listener: socket.socket, log_level: str) -> bool:
    """Whether it was Ctrl-C."""
    received: list[int] = []
    server = HttpServer(app, log_level=log_level, timeout_graceful_shutdown=SHUTDOWN_S, lifespan="on")

    def end(number: int) -> None:
        received.append(number)
        server.handle_exit(number, None)

    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    with listener:
        host, port = listener.getsockname()[:2]
        log.info("listening at http://%s:%d", in_url(host), port)
        await server.serve([listener])
    return signal.SIGINT in received
