"""One MCP session with one server, in a task of its own.

The SDK tears a broken transport down by cancelling the task that opened it. If that were the episode's task, a dying
server would look like a cancelled episode. So the session lives in a task here; callers wait for it from outside, and a
death reaches them as `ToolServerDied` with its cause.

Always `mode="legacy"` (the initialize handshake): the newer default is stateless, and tools keep state per episode.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from pydantic import ValidationError

from sampler.errors import ToolServerDied, ToolTimeout
from sampler.tools.servers import ToolServer

log = logging.getLogger(__name__)
T = TypeVar("T")

# After the SDK's own time-out it still sends a courtesy cancellation; this is how long we let it.
_GRACE_S = 5.0
_MAX_TOOL_PAGES = 100


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Seconds, characters, counts. A call's own time-out is never above `max_call_s`."""

    open_s: float = 30.0
    call_s: float = 120.0
    max_call_s: float = 1800.0
    close_s: float = 8.0  # a stdio server gets 2 s to leave, then SIGTERM, then SIGKILL
    max_result_chars: int = 20_000
    max_parallel_calls: int = 8


class Connection:
    """`open`, `list_tools`, `call`, `close`; after a death every call raises ToolServerDied at once."""

    def __init__(self, server: ToolServer, limits: ToolLimits) -> None:
        self.server = server
        self._limits = limits
        self._session: ClientSession | None = None
        self._leave = asyncio.Event()
        self._opened = asyncio.Event()
        self._cause: BaseException | None = None
        self._slots = asyncio.Semaphore(limits.max_parallel_calls)
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and shake hands. Raises ToolServerDied or ToolTimeout; nothing stays open then."""
        self._task = asyncio.create_task(self._live(), name=f"mcp session {self.server.name}")
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait({opened, self._task}, timeout=self._limits.open_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            opened.cancel()
        if self._task.done():
            raise self._died()
        if not self._opened.is_set():
            await self.close()
            raise ToolTimeout(f"tool server {self._where}: no session within {self._limits.open_s:g} s")

    async def list_tools(self) -> list[Tool]:
        """All pages. Raises ToolFailure."""
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_TOOL_PAGES):
            page = await self._list_page(cursor)
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise ToolServerDied(f"tool server {self._where}: its list of tools has more than {_MAX_TOOL_PAGES} pages")

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """One call. Raises MCPError where the server answers with a protocol error, ToolFailure where it does not answer."""
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        bound_s = min(timeout_s, self._limits.max_call_s)
        async with self._slots:
            # Not `call_tool`: that one lists the tools again, and validates what the model will read as text anyway.
            return await self._ask(lambda session: session.send_request(request, CallToolResult, bound_s), bound_s)

    async def close(self) -> None:
        """End the session; within `close_s`, by force if need be. Never raises for what the server does."""
        if self._task is None:
            return
        self._leave.set()
        _, pending = await asyncio.wait({self._task}, timeout=self._limits.close_s)
        if pending:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=self._limits.close_s)

    async def _list_page(self, cursor: str | None) -> ListToolsResult:
        request = ListToolsRequest(params=PaginatedRequestParams(cursor=cursor))
        bound_s = self._limits.open_s
        try:
            return await self._ask(lambda session: session.send_request(request, ListToolsResult, bound_s), bound_s)
        except MCPError as exc:
            raise ToolServerDied(f"tool server {self._where}: it does not list its tools: {exc}") from exc

    async def _ask(self, send: Callable[[ClientSession], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Run one request against the session, but outlive neither the session's task nor the time-out."""
        if self._session is None or self._task is None or self._task.done():
            raise self._died()
        request = asyncio.create_task(send(self._session), name=f"mcp request {self.server.name}")
        try:
            await asyncio.wait({request, self._task}, timeout=timeout_s + _GRACE_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait({request}, timeout=_GRACE_S)
        return self._outcome(request, timeout_s)

    def _outcome(self, request: "asyncio.Task[T]", timeout_s: float) -> T:
        if not request.done() or request.cancelled():
            if self._task is None or self._task.done():
                raise self._died()
            raise ToolTimeout(f"tool server {self._where}: no answer within {timeout_s:g} s")
        exc = request.exception()
        if isinstance(exc, MCPError) and exc.code == REQUEST_TIMEOUT:
            raise ToolTimeout(f"tool server {self._where}: no answer within {timeout_s:g} s") from exc
        if isinstance(exc, MCPError) and exc.code == CONNECTION_CLOSED:
            raise self._died() from exc
        if isinstance(exc, ValidationError):
            raise ToolServerDied(f"tool server {self._where}: its answer breaks the protocol: {exc}") from exc
        return request.result()

    async def _live(self) -> None:
        """The session's whole life. Ends when told to, or when the transport dies; then `_cause` says why."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._client(stack))
                self._session = client.session
                self._opened.set()
                await self._leave.wait()
        except asyncio.CancelledError as exc:
            self._cause = exc
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # from `close` or the end of the loop, not from the transport
        except (MCPError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, BaseExceptionGroup) as exc:
            self._cause = exc
            log.debug("tool session ended server=%s cause=%s", self._where, _innermost(exc))
        finally:
            self._session = None

    async def _client(self, stack: contextlib.AsyncExitStack) -> Client:
        server = self.server
        if server.url is None:
            parameters = StdioServerParameters(
                command=server.command or "", args=list(server.args), env=dict(server.env), cwd=server.cwd
            )
            return Client(parameters, mode="legacy", read_timeout_seconds=self._limits.open_s)
        http = httpx2.AsyncClient(
            verify=_ssl_context(),
            headers=dict(server.headers),
            # Parallel calls, the server's own stream and the closing DELETE. uvicorn ends idle connections after 5 s.
            limits=httpx2.Limits(max_connections=self._limits.max_parallel_calls + 4, keepalive_expiry=2.0),
            timeout=httpx2.Timeout(self._limits.open_s, read=self._limits.max_call_s + 2 * _GRACE_S),
        )
        await stack.enter_async_context(http)
        transport = streamable_http_client(server.url, http_client=http, max_sse_event_size=64 * 1024 * 1024)
        return Client(transport, mode="legacy", read_timeout_seconds=self._limits.open_s)

    @property
    def _where(self) -> str:
        return f"{self.server.name} ({self.server.address})"

    def _died(self) -> ToolServerDied:
        task = self._task
        if self._cause is None and task is not None and task.done() and not task.cancelled():
            self._cause = task.exception()
        cause = _innermost(self._cause) if self._cause is not None else None
        why = f"{type(cause).__name__}: {cause}" if cause is not None else "the session is closed"
        died = ToolServerDied(f"tool server {self._where}: {why}")
        died.__cause__ = cause
        return died


def _innermost(exc: BaseException) -> BaseException:
    """The first real cause in a group: task groups wrap what a person wants to read."""
    while isinstance(exc, BaseExceptionGroup):
        real = [inner for inner in exc.exceptions if not isinstance(inner, asyncio.CancelledError)]
        exc = (real or list(exc.exceptions))[0]
    return exc


@cache
def _ssl_context() -> ssl.SSLContext:
    """One for all sessions: building it costs 18 ms and 0.9 MB each time."""
    return ssl.create_default_context()
