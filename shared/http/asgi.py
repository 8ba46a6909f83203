"""Requests and answers over ASGI, with nothing between: a framework costs more per call than the gateway itself."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
EVENTS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class HttpRefusal(Exception):
    """An answer other than 200. `body`: JSON, or a text."""

    def __init__(self, status: int, body: "Mapping[str, Any] | str", headers: Headers | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or []


class HttpRequest:
    """`headers`: by lower-case name; the last of several counts."""

    __slots__ = ("_raw_path", "_receive", "_send", "headers", "is_broken", "method", "path", "raw_headers")

    def __init__(self, scope: Event, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_headers: Headers = scope["headers"]
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers}
        self._raw_path: str = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        self.is_broken = False  # the client is away
        self._receive, self._send = receive, send

    @property
    def raw_parts(self) -> list[str]:
        """Of the path, still with its escapes: a name may contain a slash."""
        return [part for part in self._raw_path.split("/") if part]

    @property
    def named_headers(self) -> list[tuple[str, str]]:
        """All, also those that come twice."""
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.raw_headers]

    async def body(self, max_bytes: int) -> bytes:
        """Raises HttpRefusal. The server bounds the time (`shared.http`)."""
        announced = self.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > 2 * max_bytes:
            raise too_large(max_bytes)
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                self.is_broken = True
                raise HttpRefusal(400, "the client went away")
            piece: bytes = event.get("body", b"")
            num_bytes += len(piece)
            is_last = not event.get("more_body")
            if num_bytes > max_bytes:  # read on for a while: a client that is still sending would not see the answer
                parts.clear()
                if is_last or num_bytes > 2 * max_bytes:
                    raise too_large(max_bytes)
                continue
            parts.append(piece)
            if is_last:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def until_broken(self) -> None:
        """Return when the client has closed the connection. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_broken = True

    async def breaks_within(self, seconds: float) -> bool:
        """Only after the body was read."""
        watch = asyncio.ensure_future(self.until_broken())
        await asyncio.wait({watch}, timeout=seconds)
        watch.cancel()
        return self.is_broken

    async def answer(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        fields = [(b"content-length", str(len(body)).encode()), *(headers or [])]
        if body and not any(name == b"content-type" for name, _ in fields):
            fields.append(_JSON)
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": body})

    async def answer_json(self, status: int, content: Any, headers: Headers | None = None) -> None:
        await self.answer(status, json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"), headers)

    async def refuse(self, refusal: HttpRefusal) -> None:
        if isinstance(refusal.body, str):
            text = [(b"content-type", b"text/plain; charset=utf-8"), *refusal.headers]
            await self.answer(refusal.status, refusal.body.encode("utf-8", "replace"), text)
        else:
            await self.answer_json(refusal.status, refusal.body, refusal.headers)

    async def begin_events(self, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": [*EVENTS, *headers]})

    async def event(self, body: bytes) -> None:
        await self._send(
            {"type": "http.response.body", "body": b"event: message\r\ndata: " + body + b"\r\n\r\n", "more_body": True}
        )

    async def comment(self) -> None:
        """Keeps proxies from closing a silent stream."""
        await self._send({"type": "http.response.body", "body": b": still here\r\n\r\n", "more_body": True})

    async def end_events(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})


def require_token(request: HttpRequest, token: bytes | None) -> None:
    """Raises HttpRefusal for a request without the bearer token; None: none is needed."""
    if token is None:
        return
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), token):
        raise HttpRefusal(401, "a bearer token is missing or wrong", [(b"www-authenticate", b"Bearer")])


def too_large(max_bytes: int) -> HttpRefusal:
    return HttpRefusal(413, f"the body has more than {max_bytes} bytes", [(b"connection", b"close")])


def host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def retry_after(seconds: float) -> Headers:
    """In whole seconds, as RFC 9110 has it; at least one."""
    return [(b"retry-after", str(max(1, round(seconds))).encode())]
