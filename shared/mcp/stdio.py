"""Streams of an MCP session with a server in a child process: one JSON-RPC message per line, on its stdin and stdout.

Replaces the SDK's `stdio_client`, which copies its buffer with every piece it reads (50 MB: 18 s), has no bounds, and ends
the session at a byte that is not UTF-8.
"""

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from shared.mcp.limits import SHOWN_CHARS
from shared.mcp.messages import MessageLines, MessageTooLong, answered_request, fault_of, mended
from shared.mcp.servers import ToolServer
from shared.processes.guarded import end_process, has_ended, start_process

log = logging.getLogger(__name__)

_PIECE_BYTES = 256 * 1024
_FLUSH_S = 0.5  # for messages that the session has already handed over
_EXIT_S = 0.5  # between the end of stdout and of its process, whose status is the cause
_KEPT_CHARS = 2000  # of the end of a server's stderr

Incoming = MemoryObjectSendStream[SessionMessage | Exception]
Outgoing = MemoryObjectReceiveStream[SessionMessage]


class _Stderr:
    """Forwards a server's stderr to ours, and keeps its last part, which often explains why it ended."""

    def __init__(self) -> None:
        self.last = ""
        self.ended = asyncio.Event()

    async def read(self, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(_PIECE_BYTES):
            text = piece.decode("utf-8", "replace")
            self.last = (self.last + text)[-_KEPT_CHARS:]
            sys.stderr.write(text)
            sys.stderr.flush()
        self.ended.set()


@contextlib.asynccontextmanager
async def stdio_transport(
    server: ToolServer, max_message_bytes: int, on_end: Callable[[str], None]
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """A transport for `mcp.Client`. `on_end` receives the reason when the server's side ends. Raises OSError, ValueError."""
    started = await start_process(server.child_command)
    process = started.process
    assert process.stdout is not None
    assert process.stderr is not None
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    stderr = _Stderr()
    errors = asyncio.create_task(stderr.read(process.stderr), name=f"stderr of {server.name}")
    reader = asyncio.create_task(
        _read(process, incoming, MessageLines(max_message_bytes), stderr, on_end), name=f"stdout of {server.name}"
    )
    writer = asyncio.create_task(_write(process, outgoing, incoming, stderr, on_end), name=f"stdin of {server.name}")

    async def end() -> None:
        try:
            read_stream.close()  # the reader continues, but only drains: a server stuck on a full pipe reads no stdin
            write_stream.close()
            await asyncio.wait({writer}, timeout=_FLUSH_S)
            await end_process(started)
            for task in (reader, writer, errors):
                task.cancel()
            await asyncio.wait({reader, writer, errors})
        finally:  # also if the event loop ends during the wait
            for stream in (incoming, outgoing):
                stream.close()

    try:
        yield read_stream, write_stream
    finally:
        await asyncio.shield(asyncio.create_task(end(), name=f"end of {server.name}"))


async def _read(
    process: Process, incoming: Incoming, lines: MessageLines, stderr: _Stderr, on_end: Callable[[str], None]
) -> None:
    """Pass messages to the session until the server closes its stdout; drop messages after the session's end."""
    assert process.stdout is not None
    why = ""
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            while piece := await process.stdout.read(_PIECE_BYTES):
                for line in lines.feed(piece):
                    message = _message(line)
                    if message is not None:
                        await incoming.send(message)
        except MessageTooLong as exc:
            why = str(exc)
        except ConnectionError as exc:
            why = f"{type(exc).__name__}: {exc}"
        on_end(why or await _end_of(process, stderr, "stdout"))
    incoming.close()
    with contextlib.suppress(ConnectionError):
        while await process.stdout.read(_PIECE_BYTES):
            pass


async def _write(
    process: Process, outgoing: Outgoing, incoming: Incoming, stderr: _Stderr, on_end: Callable[[str], None]
) -> None:
    """Send the session's messages until it ends or the server closes its stdin."""
    assert process.stdin is not None
    try:
        async for item in outgoing:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode("utf-8", "replace") + b"\n")
            await process.stdin.drain()
    except (ConnectionError, RuntimeError):  # RuntimeError: the pipe is already closed
        on_end(await _end_of(process, stderr, "stdin"))  # before the session's end, which asks for the reason
        incoming.close()  # the server may live: a request must not wait for an answer that cannot come


def _message(line: bytes) -> SessionMessage | None:
    """None for anything but a message: some servers print to their stdout."""
    line = mended(line.strip())
    if not line:
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError as exc:
        request = answered_request(line[:_KEPT_CHARS], line[-_KEPT_CHARS:])
        if request is None:
            log.debug("a line of a tool server is not a message: %r", line[:SHOWN_CHARS])
            return None
        why = f"its answer is not a JSON-RPC message: {fault_of(exc)}: {line[:SHOWN_CHARS]!r}"
        error = ErrorData(code=PARSE_ERROR, message=why)
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request, error=error))


async def _end_of(process: Process, stderr: _Stderr, closed: str) -> str:
    if not await has_ended(process, _EXIT_S):
        return f"it closed its {closed}"
    with contextlib.suppress(TimeoutError):  # a grandchild may hold it open
        async with asyncio.timeout(_EXIT_S):
            await stderr.ended.wait()
    status = process.returncode or 0
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    last = " | ".join(line.strip() for line in stderr.last.splitlines() if line.strip())
    return f"its process {how}" + (f"; last on its stderr: {last[-SHOWN_CHARS:]}" if last else "")
