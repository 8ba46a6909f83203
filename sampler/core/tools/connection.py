"""One MCP session with one server over stdio, HTTP+SSE or streamable HTTP, in a separate task.

The SDK tears a broken transport down by cancelling the task that opened it. In the episode's task, a server crash would look
like a cancelled episode. So the session lives in a separate task; callers wait for it from outside, and a crash reaches them
as `ToolServerDied` with its cause.

`revision` states which revision of the protocol the session uses.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import anyio
import httpx2
from mcp import MCPError
from mcp.client.session import ClientSession, IncomingMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from sampler.core.errors import ToolFailure, ToolServerDied, ToolTimeout
from sampler.core.tools.incoming import checked
from sampler.core.tools.limits import ToolLimits
from sampler.core.tools.offered import OfferedTool
from sampler.core.tools.own_ends import own_end_text
from sampler.core.tools.posted_calls import CallProgress, PostedCalls
from sampler.core.tools.revision import call_tool, has_no_sessions, needs_listing, session_over
from sampler.core.tools.silence import Silence
from shared.mcp.busy import Line, PatientClient
from shared.mcp.http_bodies import HttpAnswer, http_answer
from shared.mcp.messages import fault_of
from shared.mcp.servers import ToolServer
from shared.mcp.transports import innermost, max_event_bytes, open_transport

log = logging.getLogger(__name__)
T = TypeVar("T")

# Time for an abandoned request to send its courtesy cancellation.
_GRACE_S = 5.0
# Over HTTP a request learns of the closed connection slightly before the session's task ends with the cause.
_CAUSE_S = 1.0
_MAX_TOOL_PAGES = 100
# JSON-RPC reserves these codes for the protocol; all others are answers of the tool.
_PROTOCOL_CODES = range(-32768, -31999)
# Among the protocol's codes, these two may also be answers: wrong arguments; an error raised by the tool (older SDKs).
_ANSWER_CODES = (INVALID_PARAMS, INTERNAL_ERROR)
# …unless there was only an HTTP status: the first is the SDK's wording for it, the second its servers'.
_STATUS_MESSAGES = ("Server returned an error response", "Internal server error")
# Answers if the session still works: a refused request, an unknown method, a server-specific error.
_SERVER_CODES = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, *range(-32099, -31999)})
# The SDK's own messages for a lost connection, with a code that a server may also use.
_CLOSED_MESSAGES = ("Connection closed", "SSE stream")
_PING_S = 10.0


class Connection:
    """`open`, `list_tools`, `call`, `close`, as `ToolConnection` promises."""

    def __init__(self, server: ToolServer, limits: ToolLimits, line: Line | None = None) -> None:
        self.server = server
        self.line = line or Line()
        self.num_list_changes = 0
        self.on_list_changed: Callable[[], None] = lambda: None
        self._limits = limits
        self._session: ClientSession | None = None
        self._leave = asyncio.Event()
        self._opened = asyncio.Event()
        self._cause: BaseException | None = None
        self._opening = HttpAnswer()
        self._end = ""  # why the server's side of the transport ended, if known
        self._has_listed = False
        self._http: PatientClient | None = None
        self._progress = CallProgress()
        self._posted: PostedCalls | None = None  # over streamable HTTP, with a handshake
        self._slots = asyncio.Semaphore(limits.max_parallel_calls)
        self._task: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = (
            None  # the session is over, `_cause` is known; its server may still be told
        )

    async def open(self) -> None:
        """Connect and do the handshake. Raises ToolServerDied or ToolTimeout, and then leaves nothing open."""
        over = self._over = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(over), name=f"mcp session {self.server.name}")
        self._task.add_done_callback(lambda _: _settle(over))  # also if it was cancelled before its first step
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

    async def list_tools(self) -> list[OfferedTool]:
        """All pages. Raises ToolFailure."""
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_TOOL_PAGES):
            page = await self._list_page(cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:  # some servers end their list with an empty cursor
                self._has_listed = True
                return [OfferedTool.from_mcp(self.server, tool) for tool in tools if _is_callable(tool)]
        raise ToolServerDied(f"tool server {self._where}: its list of tools has more than {_MAX_TOOL_PAGES} pages")

    async def call(self, tool: OfferedTool, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """One call; `timeout_s` counts from the last progress report. Raises ToolFailure if the server does not answer."""
        whole_s = self._limits.max_call_s
        if not self._has_listed and self._session is not None and needs_listing(self._session, tool.parameters):
            await self.list_tools()
        async with self._slots:
            silence, seen, was_over = Silence(timeout_s, whole_s), HttpAnswer(), bool(self._end)
            try:
                return await self._ask(
                    lambda session: self._sent(session, tool.name, arguments, silence), silence, seen
                )
            except MCPError as exc:
                return await self._answer(exc, tool.name, seen)
            except ToolServerDied as died:
                died.in_call = not was_over
                raise

    async def _sent(
        self, session: ClientSession, name: str, arguments: Mapping[str, Any], silence: Silence
    ) -> CallToolResult:
        if self._posted is None:
            bound_s = self._limits.max_call_s + _GRACE_S
            return await call_tool(session, name, arguments, self.server.episode, bound_s, silence.on_progress)
        try:
            return await self._posted.call(name, arguments, silence.on_progress)
        except (httpx2.HTTPError, OSError) as exc:  # the session ends with the first connection that breaks
            self._cause = self._cause or exc
            self._leave.set()
            raise

    async def close(self) -> None:
        """End the session within twice `close_s`. Never raises for server errors."""
        if self._task is None:
            return
        self._leave.set()
        _, pending = await asyncio.wait({self._task}, timeout=self._limits.close_s)
        # The end of a child process (stdin closed, SIGTERM, SIGKILL: 7 s) must not be interrupted, or the process would remain.
        if pending and (self.server.url is not None or not self._opened.is_set()):
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=self._limits.close_s)

    async def lives(self) -> bool:
        """Whether the session answers a ping with anything but a session error."""
        bound_s = min(_PING_S, self._limits.open_s)
        try:
            await self._ask(lambda session: session.send_ping(), Silence(bound_s, bound_s))
        except MCPError as exc:
            return exc.code == METHOD_NOT_FOUND
        except ToolFailure:
            return False
        return True

    async def _answer(self, exc: MCPError, tool: str, seen: HttpAnswer) -> CallToolResult:
        """Convert a protocol error into the tool's answer, if it is one."""
        is_answer = exc.code not in _PROTOCOL_CODES or (
            exc.code in _ANSWER_CODES and exc.message not in _STATUS_MESSAGES
        )
        if not is_answer and exc.code in _SERVER_CODES and not seen.is_refusal:
            is_answer = await self.lives()  # servers also report the model's mistakes this way
        if not is_answer:
            why = seen.seen_in(str(exc))
            died = ToolServerDied(f"tool server {self._where}, tool {tool}: {self.server.quoted(why)}")
            died.ended = own_end_text(exc.code, why)
            raise died from exc
        return CallToolResult(content=[TextContent(type="text", text=str(exc))], is_error=True)

    async def _list_page(self, cursor: str | None) -> ListToolsResult:
        bound_s, seen = self._limits.open_s, HttpAnswer()
        try:
            return await self._ask(
                lambda session: session.list_tools(params=PaginatedRequestParams(cursor=cursor)),
                Silence(bound_s, bound_s),
                seen,
            )
        except MCPError as exc:
            why = self.server.quoted(seen.seen_in(str(exc)))
            raise ToolServerDied(f"tool server {self._where}: it does not list its tools: {why}") from exc

    async def _ask(
        self,
        send: Callable[[ClientSession], Coroutine[Any, Any, T]],
        silence: Silence,
        seen: HttpAnswer | None = None,
    ) -> T:
        """Run one request on the session, bounded by the session's task and the time-out."""
        if self._session is None or self._over is None or self._over.done():
            raise self._died()
        context = contextvars.copy_context()
        context.run(http_answer.set, seen)
        name = f"mcp request {self.server.name}"
        request = asyncio.create_task(send(self._session), name=name, context=context)
        either: set[asyncio.Future[Any]] = {request, self._over}
        ended: set[asyncio.Future[Any]] = set()
        try:
            with self.line.clock(silence.postpone):
                while not ended and (remaining_s := silence.remaining_s()) > 0:
                    ended, _ = await asyncio.wait(either, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not request.done():
                request.cancel()
                await asyncio.wait({request}, timeout=_GRACE_S)
        if self.server.url is not None and _lost_connection(request):
            await asyncio.wait({self._over}, timeout=_CAUSE_S)
        return self._outcome(request, silence.silence_s, seen or HttpAnswer())

    def _outcome(self, request: "asyncio.Task[T]", timeout_s: float, seen: HttpAnswer) -> T:
        if not request.done() or request.cancelled():
            if self._over is None or self._over.done():
                raise self._died()
            raise ToolTimeout(f"tool server {self._where}: no answer within {timeout_s:g} s")
        exc = request.exception()
        if isinstance(exc, MCPError) and not (
            exc.code == CONNECTION_CLOSED and exc.message.startswith(_CLOSED_MESSAGES)
        ):
            raise exc
        if isinstance(exc, ValidationError):
            raise ToolServerDied(f"tool server {self._where}: its answer breaks the protocol: {fault_of(exc)}") from exc
        if exc is not None:  # of any kind: the SDK could not send the request, or read the answer
            raise self._died(exc, seen)
        return request.result()

    async def _live(self, over: "asyncio.Future[None]") -> None:
        """The session's whole lifetime, and the end of it, told to its server, which may hang: calls do not wait for that."""
        with contextlib.suppress(httpx2.HTTPError, OSError):
            async with contextlib.AsyncExitStack() as stack:
                try:
                    await self._converse(stack)
                finally:
                    _settle(over)

    async def _converse(self, stack: contextlib.AsyncExitStack) -> None:
        """Ends on request, or when the transport breaks; then `_cause` has the reason."""
        http_answer.set(self._opening)
        try:
            transport = await open_transport(self.server, self._limits, stack, self.line, self._ended, self._new_client)
            async with session_over(
                checked(transport, self._progress.report), self.server.revision, self._limits.open_s, self._on_message
            ) as session:
                self._session = session
                self._posted = self._new_posted(session)
                http_answer.set(None)
                self._opened.set()
                await self._leave.wait()
        except asyncio.CancelledError as exc:
            self._cause = exc
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # raised by `close` or the end of the loop, not by the transport
        except (MCPError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, BaseExceptionGroup) as exc:
            self._cause = exc
            log.debug("tool session ended server=%s cause=%s", self._where, innermost(exc))
        finally:
            self._session = None

    def _new_client(self, line: Line, **options: Any) -> PatientClient:
        self._http = PatientClient(line, **options)
        return self._http

    def _new_posted(self, session: ClientSession) -> PostedCalls | None:
        http, url = self._http, self.server.url
        if http is None or url is None or http.was_redirected or has_no_sessions(session):
            return None
        return PostedCalls(http, session, url, max_event_bytes(self._limits), self._progress, self._note_list_change)

    def _ended(self, why: str) -> None:
        self._end = self._end or why

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._note_list_change()

    def _note_list_change(self) -> None:
        self.num_list_changes += 1
        self.on_list_changed()

    @property
    def _where(self) -> str:
        return f"{self.server.name} ({self.server.address})"

    def _died(self, raised: BaseException | None = None, seen: HttpAnswer | None = None) -> ToolServerDied:
        """The error with its cause: the end of the session's task, else the request's exception, and the HTTP status."""
        task = self._task
        if self._cause is None and task is not None and task.done() and not task.cancelled():
            self._cause = task.exception()
        known = self._cause or raised
        cause = innermost(known) if known is not None else None
        why = f"{type(cause).__name__}: {cause}" if cause is not None else "the session is closed"
        if not isinstance(cause, MCPError) or cause.code == CONNECTION_CLOSED:
            why = self._end or why  # the SDK's message is only "Connection closed"
        why = (seen or self._opening).seen_in(why)
        died = ToolServerDied(f"tool server {self._where}: {self.server.quoted(why)}")
        died.__cause__ = cause
        died.ended = self._end if self.server.url is None and self._opened.is_set() else ""
        return died


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


def _lost_connection(request: "asyncio.Task[Any]") -> bool:
    exc = None if not request.done() or request.cancelled() else request.exception()
    if isinstance(exc, MCPError):
        return exc.code == CONNECTION_CLOSED
    return isinstance(exc, anyio.ClosedResourceError | anyio.BrokenResourceError)


def _is_callable(tool: Tool) -> bool:
    """Tools that run only as background tasks reject ordinary calls, so they are not offered."""
    return tool.execution is None or tool.execution.task_support != "required"
