"""Bounds, decompresses and repairs HTTP bodies of a tool server, and keeps the status, which the SDK drops.

A gzip body of 300 KB may expand to 300 MB, so decompression happens here, in pieces. A body, or a line of an event stream,
above the bound becomes an error response to its request (see `messages`), or `BodyTooLong` if there is no request.
"""

import contextvars
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

from shared.mcp.limits import SHOWN_CHARS
from shared.mcp.messages import MessageLines, mended, too_long_answer
from shared.outside_text import clipped, text_of

ACCEPTED_ENCODINGS = "gzip, deflate"
SESSION_HEADER = "mcp-session-id"
JSON, EVENTS = "application/json", "text/event-stream"
_PIECE_BYTES = 64 * 1024
_GZIP_OR_ZLIB = 47  # wbits: either header
_ERROR = 400


class BodyTooLong(httpx2.DecodingError):
    """A body above the bound that answers no JSON-RPC request."""


@dataclass(slots=True)
class HttpAnswer:
    """The last HTTP response to one request of the session, which the SDK's error omits. `status=0`: none."""

    status: int = 0
    told: str = ""  # of an error response: status, reason, and the start of its body
    carries_messages: bool = True  # a 200 with JSON or events: an error in it comes from the server itself

    @property
    def is_refusal(self) -> bool:
        return self.status != 0 and not (self.status == httpx2.codes.OK and self.carries_messages)

    def seen_in(self, message: str) -> str:
        return f"{message} ({self.told})" if self.told else message


# Set by the task that sends a request; the SDK runs the exchange in a copy of its context.
http_answer: contextvars.ContextVar[HttpAnswer | None] = contextvars.ContextVar("http_answer", default=None)


async def note_answer(response: httpx2.Response) -> None:
    """Hook of the client: record the response for the task that sent the request."""
    seen = http_answer.get()
    of_session = response.request.method != "POST" and SESSION_HEADER in response.request.headers
    if seen is None or of_session:  # the session's event stream, or its end: belongs to no request
        return
    kind = _kind(response)
    seen.status = response.status_code
    seen.carries_messages = kind in (JSON, EVENTS)
    seen.told = ""
    if response.status_code >= _ERROR:
        body = "" if kind == EVENTS else " ".join(text_of((await response.aread())[:2000]).split())
        seen.told = clipped(f"HTTP {response.status_code} {response.reason_phrase}: {body}".rstrip(": "), SHOWN_CHARS)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Wraps `inner`, with bodies of at most `max_bytes`, and event-stream lines of at most `max_line_bytes`."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, max_bytes: int, max_line_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._max_line_bytes = max_line_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        pieces = _decompressed(response)
        if _kind(response) == EVENTS:
            whole = _lines(pieces, MessageLines(self._max_line_bytes, b"data: ", request_id(request)))
        else:
            whole = _body(pieces, self._max_bytes, request_id(request))
        dropped = (b"content-encoding", b"content-length")
        return httpx2.Response(
            response.status_code,
            headers=[(name, value) for name, value in response.headers.raw if name.lower() not in dropped],
            stream=_Stream(whole, response.stream),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes], inner: httpx2.AsyncByteStream) -> None:
        self._pieces = pieces
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _decompressed(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Decompress the body in pieces of bounded size, at any compression ratio. Raises DecodingError."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise _undecoded(f"its body is encoded as {clipped(encoding, 40)!r}; expected {ACCEPTED_ENCODINGS}")
    inflate = zlib.decompressobj(_GZIP_OR_ZLIB) if encoding not in ("", "identity") else None
    async for piece in response.stream:
        if inflate is None:
            yield piece
            continue
        try:
            while piece and not inflate.eof:
                plain = inflate.decompress(piece, _PIECE_BYTES)
                if plain:
                    yield plain
                piece = inflate.unconsumed_tail
        except zlib.error as exc:
            raise _undecoded(f"its body is not valid {encoding}: {exc}") from exc
    if inflate is not None and not inflate.eof:
        raise _undecoded(f"its body is not valid {encoding}: it ends early")


def _undecoded(why: str) -> httpx2.DecodingError:
    """The SDK loses this error, so it is recorded for the task that sent the request."""
    seen = http_answer.get()
    if seen is not None:
        seen.told = why
    return httpx2.DecodingError(why)


async def _body(pieces: AsyncIterator[bytes], max_bytes: int, request: int | str | None) -> AsyncIterator[bytes]:
    received: list[bytes] = []
    num_bytes = 0
    async for piece in pieces:
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            if request is None:
                raise BodyTooLong(f"the answer has more than {max_bytes} bytes and was not read")
            yield too_long_answer(request, max_bytes)
            return
        received.append(piece)
    yield mended(b"".join(received))


async def _lines(pieces: AsyncIterator[bytes], lines: MessageLines) -> AsyncIterator[bytes]:
    async for piece in pieces:
        whole = lines.feed(piece)
        if whole:
            yield b"".join(mended(line) + b"\n" for line in whole)
    rest = lines.feed(b"\n")
    if rest != [b""]:  # an empty line would end an event that the server has not finished
        yield b"".join(mended(line) + b"\n" for line in rest)


def request_id(request: httpx2.Request) -> int | str | None:
    """The id of the JSON-RPC request that was sent; None for anything else: an answer to a request of the server has one too."""
    try:
        sent = json.loads(request.content) if request.method == "POST" else None
    except (ValueError, httpx2.RequestNotRead):
        return None
    identity = sent.get("id") if isinstance(sent, dict) and {"jsonrpc", "method"} <= sent.keys() else None
    return identity if isinstance(identity, int | str) else None


def _kind(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()
