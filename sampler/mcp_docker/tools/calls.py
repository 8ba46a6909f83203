"""Calls of bundled tools that run at the same time: a coroutine each, or a thread. Streams are pipes, files or a terminal.

While the client does not read, nothing more is read from it. When stdin ends, calls in flight are answered with an error, and the
process ends.
"""

import asyncio
import contextlib
import inspect
import os
import stat
import threading
from collections.abc import Callable
from typing import cast

from sampler.mcp_docker.tools.arguments import WrongArguments
from sampler.mcp_docker.tools.bundled import BundledServer, BundledTool, ToolRefusal
from sampler.mcp_docker.tools.connection import BundledConnection, internal
from sampler.mcp_docker.tools.protocol import JsonObject, ProtocolError, RequestKey, text_result

_MOST_THREADS = 32  # calls beyond wait
_PIECE_BYTES = 256 * 1024


def serve(server: BundledServer, stdin: int, stdout: int) -> None:
    """Until stdin ends."""
    asyncio.run(_serve(server, stdin, stdout))


async def _serve(server: BundledServer, stdin: int, stdout: int) -> None:
    loop = asyncio.get_running_loop()
    flow = _Flow()
    if _is_pipe(stdout):
        into, _ = await loop.connect_write_pipe(lambda: flow, os.fdopen(stdout, "wb", 0, closefd=False))
        write: Callable[[bytes], object] = into.write
    else:  # a file or a terminal
        into, write = None, lambda line: _write_all(stdout, line)
    threads = asyncio.Semaphore(_MOST_THREADS)
    connection = BundledConnection(
        server, write, lambda *call: asyncio.ensure_future(_run_call(connection, threads, *call))
    )
    reading = _Reading(connection)
    source = stdin if _is_pipe(stdin) else _copied(stdin)
    flow.reading, _ = await loop.connect_read_pipe(lambda: reading, os.fdopen(source, "rb", 0, closefd=False))
    await reading.ended
    if into is not None:
        into.write_eof()  # what is written is sent first
        await flow.ended


async def _run_call(
    connection: BundledConnection, threads: asyncio.Semaphore, key: RequestKey, tool: BundledTool, values: JsonObject
) -> None:
    result: JsonObject | ProtocolError
    try:
        if inspect.iscoroutinefunction(tool.function):
            result = await _awaited(tool, values)
        else:
            async with threads:
                result = await _in_thread(lambda: tool.result(values))
    except Exception as exc:  # noqa: BLE001 - a tool may raise anything: this call is answered with the error, the others go on
        result = internal(exc)
    connection.finish(key, result)


async def _awaited(tool: BundledTool, values: JsonObject) -> JsonObject:
    try:
        return text_result(await tool.function(tool.arguments(**values)))
    except (WrongArguments, ToolRefusal) as exc:
        return text_result(str(exc), is_error=True)


async def _in_thread(function: Callable[[], JsonObject]) -> JsonObject:
    """In a thread that the process's end does not wait for, unlike an executor's."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[JsonObject] = loop.create_future()

    def settle(result: JsonObject | None, failure: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result(cast(JsonObject, result)) if failure is None else outcome.set_exception(failure)

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as exc:  # noqa: BLE001 - SystemExit too: the awaiting call raises it; without it the call would never be answered
            failure = exc
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, daemon=True).start()
    return await outcome


class _Reading(asyncio.Protocol):
    """Of stdin."""

    def __init__(self, connection: BundledConnection) -> None:
        self._connection = connection
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._connection.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self._connection.end()
            self.ended.set_result(None)


class _Flow(asyncio.BaseProtocol):
    """Of stdout."""

    def __init__(self) -> None:
        self.reading: asyncio.ReadTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        if self.reading is not None:
            self.reading.pause_reading()

    def resume_writing(self) -> None:
        if self.reading is not None:
            self.reading.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client reads no more."""
        if not self.ended.done():
            self.ended.set_result(None)
        if self.reading is not None:
            self.reading.close()


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _copied(descriptor: int) -> int:
    """A pipe with what can be read from a file or a terminal, on which no loop can wait."""
    reading, writing = os.pipe()

    def copy() -> None:
        with contextlib.suppress(BrokenPipeError):
            while piece := os.read(descriptor, _PIECE_BYTES):
                _write_all(writing, piece)
        os.close(writing)

    threading.Thread(target=copy, daemon=True).start()
    return reading


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
