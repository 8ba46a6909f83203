"""A tool server over stdio. The tools are `bundled`'s, the protocol is `protocol`'s.

    stdin ─▶ lines ─▶ ToolProtocol ─▶ a call is a task: a coroutine, a thread, or (a quick one) at once ─▶ stdout

Calls run at the same time. While the client does not read, nothing more is read from it. When stdin ends, calls in flight are
answered with an error, and the process ends.
"""

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import Callable

from sampler.mcp_docker.tools.bundled import BundledServer, BundledTool, ToolArguments, ToolRefusal, server_of
from sampler.mcp_docker.tools.connection import BundledConnection

__all__ = ["BundledServer", "BundledTool", "ToolArguments", "ToolRefusal", "run", "server_of"]

_PIECE_BYTES = 256 * 1024


def run(server: BundledServer, stdin: int = 0, stdout: int = 1) -> None:
    """Serve until stdin ends."""
    asyncio.run(_serve(server, stdin, stdout))


async def _serve(server: BundledServer, stdin: int, stdout: int) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    flow = _Flow()
    if _is_pipe(stdout):
        into, _ = await loop.connect_write_pipe(lambda: flow, os.fdopen(stdout, "wb", 0, closefd=False))
        write: Callable[[bytes], object] = into.write
    else:  # a file or a terminal
        into, write = None, lambda line: _write_all(stdout, line)
    reading = stdin if _is_pipe(stdin) else _copied(stdin)
    connection = BundledConnection(server, ended, write)
    flow.reading, _ = await loop.connect_read_pipe(lambda: connection, os.fdopen(reading, "rb", 0, closefd=False))
    await ended
    if into is not None:
        into.write_eof()  # what is written is sent first
        await flow.ended


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
