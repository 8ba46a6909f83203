"""HTTP/1.1 connections with a tool server: a transport of httpx2 whose exchange takes a fifth of the processor time of its own.

    request ─▶ an idle connection, or a new one ─▶ head ─▶ the body, piece by piece, as its reader takes it ─▶ idle again

Promises
  * Requests, responses and errors are httpx2's, and its time-outs of connecting, of one read, of one write and of the wait for
    a place hold.
  * A connection serves the next request only if the body before has ended, exactly; an error, a cancellation or an unread rest
    closes it. An event stream whose reader leaves after the answer has ended if only its last chunk, of no bytes, follows.
  * Nothing is sent twice.
  * At most `_MOST_BUFFERED` bytes of a body wait for its reader, at any length of the body.

No proxies, and no HTTP/2. Bodies are bounded above this layer (`BoundedTransport`).
"""

import asyncio
import select
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, SupportsIndex

import httpx2

from shared.http.response_head import MAX_HEAD_BYTES, ResponseHead, body_size

_MOST_BUFFERED = 1 << 17  # half of it is asyncio's limit; above all of it the socket is not read
_PIECE_BYTES = 1 << 16
_LAST_CHUNK = b"\r\n0\r\n\r\n"  # after the end of the chunk before it
_PORTS = {"http": 80, "https": 443}
_Origin = tuple[str, str, int]  # scheme, host, port


class ToolServerTransport(httpx2.AsyncBaseTransport):
    """Bound to the running event loop. A connection that was idle for `idle_s` is not used again; 0: none is."""

    def __init__(self, tls: ssl.SSLContext, max_connections: int, idle_s: float) -> None:
        self._tls = tls
        self._places = asyncio.Semaphore(max_connections)
        self._idle_s = idle_s
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        limits = _TimeLimits(request)
        content = await request.aread()
        try:
            async with asyncio.timeout(limits.pool):
                await self._places.acquire()
        except TimeoutError as exc:
            raise httpx2.PoolTimeout(f"no free connection within {limits.pool:g} s") from exc
        connection: _Connection | None = None
        try:
            origin = _origin(request.url)
            connection = await self._take_idle(origin) or await self._connect(origin, limits)
            head = await connection.exchange(request, content, limits)
        except BaseException:  # raised again; after a cancellation too, half an exchange makes the connection unusable
            self.release(connection, reusable=False)
            raise
        stream = _Body(self, connection, head, limits)
        if head.length == 0 or request.method == "HEAD":
            stream.end()
        return httpx2.Response(head.status, headers=head.fields, stream=stream)

    async def aclose(self) -> None:
        for connection in list(self._open):
            connection.close()
        self._open.clear()
        self._idle.clear()

    def release(self, connection: "_Connection | None", *, reusable: bool) -> None:
        """The exchange is over. `connection=None`: there was none."""
        self._places.release()
        if connection is None:
            return
        if reusable and self._idle_s > 0 and connection in self._open:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            self._open.discard(connection)
            connection.close()

    async def _take_idle(self, origin: _Origin) -> "_Connection | None":
        """The one that was used last; drops those idle too long, of another origin, or closed by the server."""
        oldest = time.monotonic() - self._idle_s
        while self._idle:
            connection = self._idle.pop()
            if connection.origin == origin and connection.idle_since >= oldest and await connection.is_usable():
                return connection
            self._open.discard(connection)
            connection.close()
        return None

    async def _connect(self, origin: _Origin, limits: "_TimeLimits") -> "_Connection":
        scheme, host, port = origin
        if scheme not in _PORTS:
            raise httpx2.UnsupportedProtocol(f"{scheme!r}; expected http or https")
        try:
            async with asyncio.timeout(limits.connect):
                loop = asyncio.get_running_loop()
                reader = _CountedReader(limit=_MOST_BUFFERED // 2, loop=loop)
                protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
                tls = self._tls if scheme == "https" else None
                transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=tls)
        except TimeoutError as exc:
            raise httpx2.ConnectTimeout(f"no connection within {limits.connect:g} s") from exc
        except (OSError, UnicodeError) as exc:  # UnicodeError: no name of a host
            raise httpx2.ConnectError(str(exc)) from exc
        connection = _Connection(origin, reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        self._open.add(connection)
        return connection


class _TimeLimits:
    """Seconds, as httpx2 hands them on; None: no limit."""

    def __init__(self, request: httpx2.Request) -> None:
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        self.connect, self.read = limits.get("connect"), limits.get("read")
        self.write, self.pool = limits.get("write"), limits.get("pool")


class _CountedReader(asyncio.StreamReader):
    """`unread`: bytes received and not read yet; between two exchanges there must be none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.unread = 0

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        assert isinstance(data, bytes | bytearray), "a transport reads bytes"
        self.unread += len(data)
        super().feed_data(data)


class _Connection:
    """One exchange at a time."""

    def __init__(self, origin: _Origin, reader: _CountedReader, writer: asyncio.StreamWriter) -> None:
        self.origin = origin
        self.idle_since = 0.0
        self.at_chunk_end = False  # what was read last is the end of a chunk
        self._reader = reader
        self._writer = writer

    async def is_usable(self) -> bool:
        """Neither closed by the server, nor with bytes that belong to no exchange, received or waiting in the socket."""
        if self.at_chunk_end:  # its reader had the whole answer before the end of the body came
            self.at_chunk_end = False
            if (
                self._reader.unread != len(_LAST_CHUNK)
                or await self._reader.readexactly(len(_LAST_CHUNK)) != _LAST_CHUNK
            ):
                return False
            self._reader.unread = 0
        if self._reader.unread or self._reader.at_eof() or self._writer.is_closing():
            return False
        waiting = select.poll()
        waiting.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        self._writer.transport.abort()

    async def exchange(self, request: httpx2.Request, content: bytes, limits: _TimeLimits) -> ResponseHead:
        """Send the request, and read the head of its response, after interim ones (1xx), which are bounded together."""
        self._writer.write(_head_bytes(request) + content)
        try:
            async with asyncio.timeout(limits.write):
                await self._writer.drain()
        except TimeoutError as exc:
            raise httpx2.WriteTimeout(f"the request was not taken within {limits.write:g} s") from exc
        except ConnectionError:
            pass  # it may have answered without reading the request
        num_bytes = 0
        while True:
            text = await self._read(self._reader.readuntil(b"\r\n\r\n"), limits)
            num_bytes += len(text)
            if num_bytes > MAX_HEAD_BYTES:
                raise httpx2.RemoteProtocolError(f"no end of the head within {MAX_HEAD_BYTES} bytes")
            try:
                head = ResponseHead(text[:-4].decode("latin-1"), 0)
            except (ValueError, LookupError) as exc:
                raise httpx2.RemoteProtocolError(f"not HTTP/1.1: {exc}") from exc
            if head.status >= 200:
                return head

    async def body(self, head: ResponseHead, limits: _TimeLimits) -> AsyncIterator[bytes]:
        """The pieces of a body, without its framing."""
        if head.chunked:
            async for piece in self._chunks(limits):
                yield piece
        elif head.length is None:
            while piece := await self._read(self._reader.read(_PIECE_BYTES), limits):
                yield piece
        else:
            async for piece in self._exactly(head.length, limits):
                yield piece

    async def _chunks(self, limits: _TimeLimits) -> AsyncIterator[bytes]:
        while size := await self._chunk_size(limits):
            async for piece in self._exactly(size, limits):
                size -= len(piece)
                self.at_chunk_end = size == 0
                yield piece
            self.at_chunk_end = False
            if await self._line(limits):
                raise httpx2.RemoteProtocolError("not HTTP/1.1: a chunk is longer than its size")
        num_bytes = 0
        while line := await self._line(limits):  # trailing fields are dropped
            num_bytes += len(line)
            if num_bytes > MAX_HEAD_BYTES:
                raise httpx2.RemoteProtocolError(f"trailing fields of more than {MAX_HEAD_BYTES} bytes")

    async def _chunk_size(self, limits: _TimeLimits) -> int:
        digits = (await self._line(limits)).partition(b";")[0].decode("latin-1")
        try:
            return body_size(digits, 16)
        except ValueError as exc:
            raise httpx2.RemoteProtocolError(f"not HTTP/1.1: {exc}") from exc

    async def _exactly(self, size: int, limits: _TimeLimits) -> AsyncIterator[bytes]:
        while size:
            piece = await self._read(self._reader.read(min(size, _PIECE_BYTES)), limits)
            if not piece:
                raise httpx2.RemoteProtocolError("the server closed the connection before the body's end")
            size -= len(piece)
            yield piece

    async def _line(self, limits: _TimeLimits) -> bytes:
        return (await self._read(self._reader.readuntil(b"\r\n"), limits))[:-2]

    async def _read(self, reading: Coroutine[Any, Any, bytes], limits: _TimeLimits) -> bytes:
        """The bytes that `reading` takes of the connection. Raises httpx2.TransportError."""
        try:
            async with asyncio.timeout(limits.read):
                piece = await reading
        except TimeoutError as exc:
            raise httpx2.ReadTimeout(f"no byte within {limits.read:g} s") from exc
        except asyncio.IncompleteReadError as exc:
            raise httpx2.RemoteProtocolError("the server closed the connection without a whole response") from exc
        except asyncio.LimitOverrunError as exc:
            raise httpx2.RemoteProtocolError(f"no end of the head, or of a line, within {exc.consumed} bytes") from exc
        except OSError as exc:
            raise httpx2.ReadError(str(exc)) from exc
        self._reader.unread -= len(piece)
        return piece


class _Body(httpx2.AsyncByteStream):
    """The connection goes back when the body was read to its end, or is closed."""

    def __init__(
        self, transport: ToolServerTransport, connection: _Connection, head: ResponseHead, limits: _TimeLimits
    ) -> None:
        self._transport = transport
        self._connection: _Connection | None = connection
        self._head = head
        self._limits = limits

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._connection is None:
            return
        try:
            async for piece in self._connection.body(self._head, self._limits):
                yield piece
        except BaseException:  # raised again; after a cancellation too, the rest of the body is unread
            self._release(reusable=False)
            raise
        self.end()

    def end(self) -> None:
        """Nothing is left to read."""
        self._release(reusable=self._head.keeps_alive)

    async def aclose(self) -> None:
        is_whole = self._connection is not None and self._connection.at_chunk_end
        self._release(reusable=is_whole and self._head.keeps_alive)

    def _release(self, *, reusable: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.release(connection, reusable=reusable)


def _origin(url: httpx2.URL) -> _Origin:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme, 0)


def _head_bytes(request: httpx2.Request) -> bytes:
    fields = b"".join(b"%s: %s\r\n" % field for field in request.headers.raw)
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (request.method.encode(), request.url.raw_path, fields)
