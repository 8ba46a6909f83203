"""The streams under an MCP session: a child process, HTTP with a stream of events beside it (SSE), or streamable HTTP."""

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from functools import cache, partial
from typing import Any

import httpx2
from mcp import StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from sampler.tools.limits import ToolLimits
from sampler.tools.servers import ToolServer

log = logging.getLogger(__name__)

_REFUSALS = (401, 403, 404)  # of a token, or of a path
# Above every call's own time-out, so that it is the call that ends, not the connection.
_READ_MARGIN_S = 10.0
_MAX_EVENT_BYTES = 64 * 1024 * 1024


async def open_transport(server: ToolServer, limits: ToolLimits, stack: contextlib.AsyncExitStack) -> Any:
    """What `mcp.Client` takes as its transport. What lies below it is closed with `stack`."""
    if server.url is None:
        parameters = StdioServerParameters(
            command=server.command or "", args=list(server.args), env=dict(server.env), cwd=server.cwd
        )
        return stdio_client(parameters)
    read_s = limits.max_call_s + _READ_MARGIN_S
    if server.transport == "sse":
        return _one_pair(server, limits, read_s)
    http = await stack.enter_async_context(http_client(server, limits, httpx2.Timeout(limits.open_s, read=read_s)))
    return streamable_http_client(server.url, http_client=http, max_sse_event_size=_MAX_EVENT_BYTES)


def http_client(server: ToolServer, limits: ToolLimits, timeout: httpx2.Timeout) -> httpx2.AsyncClient:
    """One per session; all share the TLS settings."""
    return httpx2.AsyncClient(
        verify=_ssl_context(),
        headers=dict(server.headers),
        # Parallel calls, the server's own stream and the closing DELETE. uvicorn ends idle connections after 5 s.
        limits=httpx2.Limits(max_connections=limits.max_parallel_calls + 4, keepalive_expiry=2.0),
        timeout=timeout,
        event_hooks={"response": [partial(_tell_refusal, server)]},
    )


async def _tell_refusal(server: ToolServer, response: httpx2.Response) -> None:
    """The SDK's error says only that there was one."""
    if response.status_code in _REFUSALS:
        log.warning("tool server %s (%s) refuses: HTTP %d", server.name, server.address, response.status_code)


@contextlib.asynccontextmanager
async def _one_pair(server: ToolServer, limits: ToolLimits, read_s: float) -> AsyncIterator[Any]:
    def make(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return http_client(server, limits, timeout or httpx2.Timeout(limits.open_s, read=read_s))

    async with sse_client(
        server.url or "", timeout=limits.open_s, sse_read_timeout=read_s, httpx_client_factory=make
    ) as streams:
        yield streams


@cache
def _ssl_context() -> ssl.SSLContext:
    """One for all sessions: building it costs 18 ms and 0.9 MB each time."""
    return ssl.create_default_context()
