"""The gateway inside a network namespace of its own (`agent_network: gateway`).

    command ──▶ HOST:PORT, this program ──▶ SOCKET, a file ──▶ the sampler ──▶ HOST:PORT, the gateway
                └──────── in the sandbox ────────┘   └──── outside: `serve` ────┘

`python -I -S relay.py HOST PORT SOCKET COMMAND...` listens, and becomes the command. Standard library only.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable

NAME = ".gateway"  # of the socket
MAX_CONNECTIONS = 128  # of one attempt; those above it are closed
_PIECE_BYTES = 64 * 1024

Connect = Callable[[], Awaitable[tuple[StreamReader, StreamWriter]]]


class Relay:
    """Copies what connections bring to connections that it makes, both ways."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._running: set[asyncio.Task[None]] = set()

    async def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._running) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._relay(reader, writer)
        finally:
            self._running.discard(task)
            writer.close()

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _relay(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            there, back = await self._connect()
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, back), name="relay there")
                group.create_task(_copy(there, writer), name="relay back")
        finally:
            back.close()


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    """To the end, which is handed on, too."""
    try:
        while piece := await source.read(_PIECE_BYTES):
            target.write(piece)
            await target.drain()
        target.write_eof()
    except (OSError, RuntimeError):  # one side left, or has closed already
        target.close()


@contextlib.asynccontextmanager
async def relayed(folder: str, host: str, port: int, owner: tuple[int, int]) -> AsyncIterator[None]:
    """Outside: what connects to `NAME` in the folder reaches HOST:PORT."""
    listening = socket.socket(socket.AF_UNIX)
    opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{opened}/{NAME}"  # a socket's path has at most 107 bytes
        listening.bind(path)
        os.chown(path, *owner)
    finally:
        os.close(opened)
    relay = Relay(lambda: asyncio.open_connection(host, port))
    server = await asyncio.start_unix_server(relay.accept, sock=listening)
    try:
        yield
    finally:
        server.close()
        await relay.close()


def main() -> None:
    host, port, path, *command = sys.argv[1:]
    listening = socket.create_server((host, int(port)))
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        listening.close()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as exc:
            sys.exit(f"cannot run {command[0]}: {exc.strerror}")
    if os.fork():  # so that the command has no child that it did not start
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    asyncio.run(_serve(listening, path))


async def _serve(listening: socket.socket, path: str) -> None:
    relay = Relay(lambda: asyncio.open_unix_connection(path))
    server = await asyncio.start_server(relay.accept, sock=listening)
    with contextlib.suppress(asyncio.CancelledError):
        await server.serve_forever()


if __name__ == "__main__":
    main()
