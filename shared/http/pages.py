"""A small HTTP server for pages of figures, which needs no packages: `GET PATH`, one request for each connection.

It admits connections as `HttpServer` does (`connections`); each ends within its time limit, whatever its client sends.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from shared.http.connections import ConnectionLimits, ConnectionPlace, Connections
from shared.open_files import allow_many_files

MOST_HEAD_BYTES = 16_384
MOST_PAGE_CONNECTIONS = 64
JOIN_S = 30.0


@dataclass(frozen=True, slots=True)
class PlainPage:
    status: HTTPStatus
    content_type: str
    text: str

    def message(self) -> bytes:
        content = self.text.encode()
        head = f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nContent-Type: {self.content_type}\r\n"
        return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


PageOf = Callable[[str], Awaitable[PlainPage]]  # of a path, without its query


@asynccontextmanager
async def page_server(listener: socket.socket, page_of: PageOf, time_limit_s: float) -> AsyncIterator[None]:
    """Serve until the end of the block."""
    clients = Connections(ConnectionLimits(MOST_PAGE_CONNECTIONS), allow_many_files())
    running: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            async with asyncio.timeout(time_limit_s):
                await _answer(clients, _Client(writer), reader, page_of)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # its client asks again
        finally:
            writer.close()
            running.discard(task)

    server = await asyncio.start_server(accept, sock=listener, limit=MOST_HEAD_BYTES, backlog=MOST_PAGE_CONNECTIONS)
    try:
        yield
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Client:
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    def hang_up(self) -> None:
        self.writer.transport.abort()


async def _answer(clients: Connections, client: _Client, reader: asyncio.StreamReader, page_of: PageOf) -> None:
    peer = client.writer.get_extra_info("peername") or ("",)
    if clients.admit(client, peer[0]) is ConnectionPlace.NONE:
        client.hang_up()
        return
    try:
        method, target, *_ = [*(await reader.readuntil(b"\r\n\r\n")).split(b" ", 2), b"", b""]
        clients.serves(client)
        path = target.partition(b"?")[0].decode("latin-1")
        page = await page_of(path) if method == b"GET" else _NOT_ALLOWED
        client.writer.write(page.message())
        await client.writer.drain()
    finally:
        clients.closed(client)


_NOT_ALLOWED = PlainPage(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain; charset=utf-8", "expected GET\n")


@contextmanager
def serving_thread(listener: socket.socket, page_of: PageOf, time_limit_s: float, name: str) -> Iterator[None]:
    """The same in a thread of its own."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with page_server(listener, page_of, time_limit_s):
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(JOIN_S)
        listener.close()
