"""Streams of an MCP session: a child process, HTTP with a stream of events (SSE), or streamable HTTP."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from shared.mcp.auth import shared_token
from shared.mcp.busy import Line, PatientClient
from shared.mcp.http_bodies import ACCEPTED_ENCODINGS, BoundedTransport, note_answer
from shared.mcp.http_connections import ToolServerTransport
from shared.mcp.limits import TransportLimits
from shared.mcp.revision import EPISODE_HEADER
from shared.mcp.servers import ToolServer
from shared.mcp.stdio import stdio_transport

log = logging.getLogger(__name__)

_REFUSALS = (401, 403, 404)  # for a wrong token, or a wrong path
_IDLE_S = 2.0  # uvicorn closes idle connections after 5 s
# Above every call's time-out, so that the call ends, not the connection.
_READ_MARGIN_S = 10.0
_SSE_EVENT_BYTES = 1024 * 1024  # the SDK's bound for the older transport, at which it ends the session
_EVENT_MARGIN_BYTES = 4096  # for the other fields of an event


async def open_transport(
    server: ToolServer,
    limits: TransportLimits,
    stack: contextlib.AsyncExitStack,
    line: Line,
    on_end: Callable[[str], None],
    make_client: Callable[..., PatientClient] = PatientClient,
) -> Any:
    """A transport for `mcp.Client`. Its lower layers are closed with `stack`. `on_end` receives the reason for its end.

    `make_client`: for streamable HTTP.
    """
    if server.url is None:
        return stdio_transport(server, limits.max_message_bytes, on_end)
    read_s = limits.max_call_s + _READ_MARGIN_S
    if server.transport == "sse":
        return _one_pair(server, limits, read_s, line)
    stack.callback(line.stop_listening)
    timeout = httpx2.Timeout(limits.open_s, read=read_s)
    http = await stack.enter_async_context(http_client(server, limits, timeout, line, make_client))
    stack.push_async_callback(http.end_session, server.url, limits.close_s / 2)
    most = max_event_bytes(limits)
    # `end_session` alone tells the end: the SDK would wait for the answer as long as for a call's.
    return streamable_http_client(server.url, http_client=http, max_sse_event_size=most, terminate_on_close=False)


def max_event_bytes(limits: TransportLimits) -> int:
    """Of an event stream: a message, and the event's other fields."""
    return limits.max_message_bytes + _EVENT_MARGIN_BYTES


def http_client(
    server: ToolServer,
    limits: TransportLimits,
    timeout: httpx2.Timeout,
    line: Line,
    make: Callable[..., PatientClient] = PatientClient,
) -> PatientClient:
    """One client per session; all share the TLS settings."""
    most = limits.max_message_bytes
    most_of_line = min(most, _SSE_EVENT_BYTES - _EVENT_MARGIN_BYTES) if server.transport == "sse" else most
    # Parallel calls, the server's own stream and the closing DELETE.
    inner = ToolServerTransport(
        _ssl_context(),
        max_connections=limits.max_parallel_calls + 4,
        idle_s=0.0 if server.max_connections else _IDLE_S,  # a limited connection is released after its request
    )
    known_as = {EPISODE_HEADER: server.episode} if server.episode else {}
    return make(
        line,
        transport=BoundedTransport(inner, most, most_of_line),
        headers={"Accept-Encoding": ACCEPTED_ENCODINGS, **known_as, **server.headers},
        auth=None if server.auth is None or server.url is None else shared_token(server.url, server.auth),
        timeout=timeout,
        event_hooks={"response": [note_answer, partial(_log_refusal, server)]},
    )


async def _log_refusal(server: ToolServer, response: httpx2.Response) -> None:
    """Log the HTTP status, which the SDK's error omits."""
    if response.status_code in _REFUSALS:
        log.warning("tool server %s (%s) refuses: HTTP %d", server.name, server.address, response.status_code)


@contextlib.asynccontextmanager
async def _one_pair(server: ToolServer, limits: TransportLimits, read_s: float, line: Line) -> AsyncIterator[Any]:
    def make(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return http_client(server, limits, timeout or httpx2.Timeout(limits.open_s, read=read_s), line)

    async with sse_client(
        server.url or "", timeout=limits.open_s, sse_read_timeout=read_s, httpx_client_factory=make
    ) as streams:
        yield streams


def innermost(exc: BaseException) -> BaseException:
    """The first real cause in an exception group: of a transport that broke, whose task groups wrap it."""
    while isinstance(exc, BaseExceptionGroup):
        real = [inner for inner in exc.exceptions if not isinstance(inner, asyncio.CancelledError)]
        exc = (real or list(exc.exceptions))[0]
    return exc


@cache
def _ssl_context() -> ssl.SSLContext:
    """Shared by all sessions: building one costs 18 ms and 0.9 MB."""
    return ssl.create_default_context()
