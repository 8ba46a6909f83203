"""A minimal HTTP/1.1 transport with keep-alive connections to engines.

httpx's own transport (httpcore, h11, anyio) and client take about 3 ms of CPU per request; this takes about 0.2. It
implements httpx's transport interface: requests, responses and errors are httpx's. Promise: an exchange ends with a whole
response or an httpx error; a connection whose exchange was interrupted, by an error or a cancellation, is closed and never
reused; nothing is sent twice. The extension `on_part` of a request hears the parts of a chunked response as they come, which are
then not kept. Only connecting has a time-out here: the caller bounds the exchange. No proxies, no redirects,
no compression, and no body beyond `MAX_BODY_BYTES`: a reply of a million tokens has 60 MB.
"""

import asyncio
import contextlib
import ssl
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import cast

import httpx

from shared.http.response_head import MAX_HEAD_BYTES, ResponseHead, body_size

MAX_BODY_BYTES = 1 << 28
Origin = tuple[str, str, int]  # scheme, host, port
OnPart = Callable[[bytes], None]


class KeepAliveTransport(httpx.AsyncBaseTransport):
    """Bound to the running event loop. A connection that was idle for `idle_s` is not reused."""

    def __init__(self, max_connections: int, idle_s: float, connect_s: float) -> None:
        self._places = asyncio.Semaphore(max_connections)
        self._idle_s = idle_s
        self._connect_s = connect_s
        self._idle: defaultdict[Origin, deque[tuple[float, _Connection]]] = defaultdict(deque)
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        origin = (url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80))
        async with self._places:
            connection = self._take_idle(origin) or await self._connect(origin)
            try:
                response = await connection.exchange(request)
            except BaseException:  # cancelled too: half an exchange makes the connection unusable
                connection.abort()
                raise
            if connection.reusable:
                self._idle[origin].append((time.monotonic(), connection))
            else:
                connection.abort()
        return response

    async def aclose(self) -> None:
        for idle in self._idle.values():
            for _, connection in idle:
                connection.abort()
        self._idle.clear()

    def _take_idle(self, origin: Origin) -> "_Connection | None":
        """The most recently used connection; drops those idle too long, or closed by the server."""
        waiting = self._idle[origin]
        oldest = time.monotonic() - self._idle_s
        while waiting and (waiting[0][0] < oldest or not waiting[0][1].reusable):
            waiting.popleft()[1].abort()
        while waiting:
            connection = waiting.pop()[1]
            if connection.reusable:
                return connection
        return None

    async def _connect(self, origin: Origin) -> "_Connection":
        scheme, host, port = origin
        if scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{scheme!r}; expected http or https")
        if scheme == "https" and self._tls is None:
            self._tls = ssl.create_default_context()
        tls = self._tls if scheme == "https" else None
        try:
            async with asyncio.timeout(self._connect_s):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
        except TimeoutError as exc:
            raise httpx.ConnectTimeout(f"no connection within {self._connect_s:g} s") from exc
        except OSError as exc:
            raise httpx.ConnectError(str(exc)) from exc
        return connection


class _Connection(asyncio.Protocol):
    """One exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[httpx.Response] | None = None
        self._head: _Head | None = None
        self._on_part: OnPart | None = None
        self.reusable = True

    async def exchange(self, request: httpx.Request) -> httpx.Response:
        assert self._transport is not None, "connected"
        self._answer = asyncio.get_running_loop().create_future()
        self._on_part = request.extensions.get("on_part")
        self._transport.write(_head_bytes(request) + request.content)
        return await self._answer

    def abort(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------------ what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport, compatible but not a subclass

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # data without a request
            return
        self._received += data
        try:
            self._read(ended=False)
        except (ValueError, LookupError) as exc:
            self._fail(httpx.RemoteProtocolError(f"not HTTP/1.1: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            with contextlib.suppress(ValueError, LookupError):
                self._read(ended=True)
        self._fail(httpx.ReadError(str(exc) or "connection lost") if exc else httpx.RemoteProtocolError("hung up"))

    # ------------------------------------------------------------------ reading

    def _read(self, *, ended: bool) -> None:
        """Complete the exchange once the response is whole. `ended`: no more bytes will come. Raises ValueError, LookupError."""
        assert self._answer is not None
        if self._head is None:
            self._head = _read_head(self._received)
        if self._head is None:
            return
        if len(self._received) - self._head.start > 2 * MAX_BODY_BYTES:
            raise ValueError(f"no end of its body within {2 * MAX_BODY_BYTES} bytes")
        if self._on_part is not None and self._head.is_streamed:
            self._head.deliver(self._received, self._on_part)
        body = self._head.body_of(self._received, ended=ended)
        if body is None:
            return
        head, self._head = self._head, None
        self.reusable = self.reusable and head.keeps_alive
        self._received.clear()
        self._answer.set_result(httpx.Response(head.status, headers=head.fields, content=body))

    def _fail(self, error: httpx.TransportError) -> None:
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class _Head(ResponseHead):
    """Reads the body, too."""

    def __init__(self, text: str, start: int) -> None:
        super().__init__(text, start)
        if self.known.get("content-encoding", "identity") != "identity":
            raise ValueError(f"its body is encoded as {self.known['content-encoding'][:40]!r}, which was not requested")
        if self.length is not None:
            _size(str(self.length), 10)
        self._at = start
        self._parts: list[bytes] = []
        self.is_streamed = self.chunked and self.status == 200

    def body_of(self, received: bytearray, *, ended: bool) -> bytes | None:
        """The body; None until it is complete. Raises ValueError."""
        if self.chunked:
            return self._unchunked(received)
        if self.length is None:
            return bytes(received[self.start :]) if ended else None
        end = self.start + self.length
        return bytes(received[self.start : end]) if len(received) >= end else None

    def deliver(self, received: bytearray, on_part: OnPart) -> None:
        """Give the chunks that are complete to `on_part`, and drop them. Raises ValueError."""
        self._unchunked(received)
        if self._parts:
            on_part(b"".join(self._parts))
            self._parts.clear()
        del received[: self._at]
        self.start = self._at = 0

    def _unchunked(self, received: bytearray) -> bytes | None:
        """Continues at the last position, so many small chunks stay cheap. Trailing fields are dropped."""
        while (line_end := received.find(b"\r\n", self._at)) >= 0:
            size = _size(received[self._at : line_end].partition(b";")[0].decode("latin-1"), 16)
            start = line_end + 2
            if size == 0:
                ended = received[start : start + 2] == b"\r\n" or received.find(b"\r\n\r\n", start) >= 0
                return b"".join(self._parts) if ended else None
            if len(received) < start + size + 2:
                return None
            self._parts.append(bytes(received[start : start + size]))
            self._at = start + size + 2
        return None


def _read_head(received: bytearray) -> _Head | None:
    """The first head that is not interim (1xx); None until it is complete. Raises ValueError, LookupError.

    The bound includes interim responses: a server could send those without end.
    """
    start = 0
    while (end := received.find(b"\r\n\r\n", start, MAX_HEAD_BYTES)) >= 0:
        head = _Head(received[start:end].decode("latin-1"), end + 4)
        if head.status >= 200:
            return head
        start = end + 4
    if len(received) >= MAX_HEAD_BYTES:
        raise ValueError(f"no end of the head within {MAX_HEAD_BYTES} bytes")
    return None


def _size(digits: str, base: int) -> int:
    return body_size(digits, base, MAX_BODY_BYTES)


def _head_bytes(request: httpx.Request) -> bytes:
    fields = b"".join(b"%s: %s\r\n" % field for field in request.headers.raw)
    return b"%s %s HTTP/1.1\r\n%s\r\n" % (request.method.encode(), request.url.raw_path, fields)
