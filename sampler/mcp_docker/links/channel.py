"""The two ways to a tool server of a session: a process on this machine over stdio, or a remote server over HTTP.

A channel sends whole messages, and calls `on_message` with each that arrives, decoded and as bytes. `on_end` is called once when
the server's side ends, with the reason.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import anyio
import httpx2
from mcp import MCPError
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import jsonrpc_message_adapter

from sampler.mcp_docker.links.errors import ServerGone, StartFailed
from sampler.mcp_docker.links.messages import Message, NotAMessage, decoded, one_line
from sampler.mcp_docker.links.remote_client import RemoteClient, StatelessClient
from sampler.mcp_docker.tools.forked import bundled_module
from shared.forks.processes import ForkedProcess, ForkServer, ForksFailed
from shared.mcp.busy import Line
from shared.mcp.limits import TransportLimits
from shared.mcp.messages import MessageLines, MessageTooLong
from shared.mcp.servers import ToolServer
from shared.mcp.transports import innermost, open_transport
from shared.sandbox import IsolationLevel, Launch, SandboxedProcess, start

log = logging.getLogger(__name__)

OnMessage = Callable[[Message, bytes], None]
ToolProcess = SandboxedProcess | ForkedProcess
OnEnd = Callable[[str], None]
_PIECE_BYTES = 256 * 1024
_UNREAD_BYTES = 64 * 1024 * 1024  # of requests that a process has not read; one more is taken
_SEND_S = 60.0  # until the transport to a remote server takes a message: a server that hangs may hold it
_EXIT_S = 1.0  # between the end of stdout and of the process, whose status is the cause
_TOLD_CHARS = 300
_REMOTE_ERRORS = (MCPError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, BaseExceptionGroup)


class ServerChannel(Protocol):
    """One tool server of one session. `has_headers`: a message is sent with headers, which may have to repeat arguments."""

    has_headers: bool

    async def open(self, on_message: OnMessage, on_end: OnEnd) -> None:
        """Raises StartFailed, and then leaves nothing open."""

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send one message. Raises ServerGone."""

    async def close(self) -> None:
        """End the server's side, and wait until nothing of it is left."""


class StdioChannel:
    """A process in a sandbox: one message per line on its stdin and stdout."""

    has_headers = False

    def __init__(
        self, launch: Launch, level: IsolationLevel, max_message_bytes: int, forks: ForkServer | None = None
    ) -> None:
        """`forks`: has the launch's module loaded, and starts it."""
        self._launch, self._level, self._max_bytes = launch, level, max_message_bytes
        self._forks = forks
        self._process: ToolProcess | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self, on_message: OnMessage, on_end: OnEnd) -> None:
        try:
            self._process = await self._started()
        except (OSError, ValueError, ForksFailed) as exc:
            raise StartFailed(f"{self._launch.command[0]!r} cannot be started: {exc}") from exc
        self._reader = asyncio.create_task(self._read(self._process, on_message, on_end))

    async def _started(self) -> ToolProcess:
        module = bundled_module(self._launch.command)
        if self._forks is not None and module is not None:
            return await self._forks.start(self._launch, module)
        return await start(self._launch, self._level)

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        process = self._process
        if process is None:
            raise ServerGone("its process has ended")
        pipe = process.stdin.transport
        unread = pipe.get_write_buffer_size()
        if unread > _UNREAD_BYTES:  # without waiting: it may never read
            raise ServerGone(f"its process has not read {unread} bytes of requests; expected at most {_UNREAD_BYTES}")
        if not pipe.is_closing():
            pipe.write(one_line(body) + b"\n")
        if pipe.is_closing():
            raise ServerGone("its process reads no more requests")

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def _read(self, process: ToolProcess, on_message: OnMessage, on_end: OnEnd) -> None:
        lines, why = MessageLines(self._max_bytes), ""
        try:
            while piece := await process.stdout.read(_PIECE_BYTES):
                for line in lines.feed(piece):
                    _hand_on(line, on_message)
        except (MessageTooLong, ConnectionError) as exc:
            why = str(exc) or type(exc).__name__
        except Exception:  # our mistake over one message: without an end the session's calls would wait for good
            log.exception("a message of %s cannot be handled", self._launch.command[0])
            why = "the gateway cannot handle one of its messages: see the gateway's log"
        on_end(why or await _end_of(process))


class RemoteChannel:
    """A session with a server that is given by its URL; at revisions without sessions, the requests of one set."""

    has_headers = True

    def __init__(self, server: ToolServer, limits: TransportLimits) -> None:
        self._server, self._limits = server, limits
        self._line = Line()
        has_sessions = server.revision != "2026-07-28"
        self._make_client = partial(RemoteClient if has_sessions else StatelessClient, quoted=server.quoted)
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._write: anyio.abc.ObjectSendStream[SessionMessage] | None = None

    async def open(self, on_message: OnMessage, on_end: OnEnd) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(opened, on_message, on_end))
        await asyncio.wait({opened, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            raise StartFailed(f"{self._server.address} cannot be reached")
        self._line.is_open = True

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        if self._write is None:
            raise ServerGone("its session has ended")
        metadata = None if headers is None else ClientMessageMetadata(headers=dict(headers))
        try:
            message = SessionMessage(jsonrpc_message_adapter.validate_json(body, by_name=False), metadata)
            async with asyncio.timeout(_SEND_S):
                await self._write.send(message)
        except TimeoutError as exc:
            raise ServerGone(f"it has not taken a message for {_SEND_S:g} s") from exc
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as exc:
            raise ServerGone("its session has ended") from exc

    async def close(self) -> None:
        if self._task is None:
            return
        self._leave.set()
        await asyncio.wait({self._task}, timeout=self._limits.close_s)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _live(self, opened: "asyncio.Future[None]", on_message: OnMessage, on_end: OnEnd) -> None:
        """`on_end` comes before the server is told of the end: it may hang."""
        with contextlib.suppress(httpx2.HTTPError, OSError):
            async with contextlib.AsyncExitStack() as stack:
                await self._converse(stack, opened, on_message, on_end)

    async def _converse(
        self,
        stack: contextlib.AsyncExitStack,
        opened: "asyncio.Future[None]",
        on_message: OnMessage,
        on_end: OnEnd,
    ) -> None:
        why = "it ended the session"
        try:
            transport = await open_transport(
                self._server, self._limits, stack, self._line, lambda _: None, self._make_client
            )
            async with transport as (read, self._write):
                opened.set_result(None)
                reader = asyncio.create_task(_read_messages(read, on_message))
                leave = asyncio.create_task(self._leave.wait())
                await asyncio.wait({reader, leave}, return_when=asyncio.FIRST_COMPLETED)
                for task in (reader, leave):
                    task.cancel()
        except _REMOTE_ERRORS as exc:
            cause = innermost(exc)
            why = self._server.quoted(f"{type(cause).__name__}: {cause}".rstrip(": "))
        finally:
            self._write = None
            on_end(why)


async def _read_messages(
    read: "anyio.abc.ObjectReceiveStream[SessionMessage | Exception]", on_message: OnMessage
) -> None:
    async for item in read:
        if isinstance(item, SessionMessage):
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "replace")
            _hand_on(text, on_message)


def _hand_on(line: bytes, on_message: OnMessage) -> None:
    line = line.strip()
    if not line:
        return
    try:
        message = decoded(line)
    except NotAMessage:  # some servers print to their stdout
        log.debug("a line of a tool server is not a message: %r", line[:_TOLD_CHARS])
        return
    on_message(message, line)


async def _end_of(process: ToolProcess) -> str:
    """Why the process ended: the limit that it exceeded, or its status with the end of its stderr."""
    try:
        async with asyncio.timeout(_EXIT_S):
            status = await process.wait()
    except TimeoutError:
        return "it closed its stdout"
    if process.exceeded:
        return f"its process exceeded its limit {process.exceeded}"
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    last = " | ".join(line.strip() for line in process.stderr.splitlines() if line.strip())
    return f"its process {how}" + (f"; last on its stderr: {last[-_TOLD_CHARS:]}" if last else "")
