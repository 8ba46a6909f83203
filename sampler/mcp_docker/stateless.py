"""The HTTP client for a server of 2026-07-28, which has no sessions: a broken connection is the end of one request.

The SDK ends its whole transport with the first connection that breaks, and with that every call in flight. Here the request
is answered with a JSON-RPC error instead, and the next one finds its own connection.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2

from sampler.mcp_docker.messages import SERVER_GONE
from sampler.tools.busy import Line, PatientClient
from sampler.tools.http_bodies import request_id

log = logging.getLogger(__name__)

_BROKEN = (httpx2.HTTPError, OSError)
_JSON, _EVENTS = "application/json", "text/event-stream"


class StatelessClient(PatientClient):
    """`quoted`: makes an error's text fit to be shown."""

    def __init__(self, line: Line, quoted: Callable[[str], str], **options: Any) -> None:
        super().__init__(line, **options)
        self._quoted = quoted

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
        except _BROKEN as exc:
            if request.method != "POST":
                raise
            return httpx2.Response(
                httpx2.codes.BAD_GATEWAY,
                headers={"Content-Type": _JSON},
                content=self._error(request, exc),
                request=request,
            )
        if options.get("stream") and not response.is_closed and _EVENTS not in response.headers.get("content-type", ""):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _WholeBody(response.stream, lambda exc: self._error(request, exc))
        return response

    def _error(self, request: httpx2.Request, exc: Exception) -> bytes:
        why = self._quoted(f"{type(exc).__name__}: {exc}".rstrip(": "))
        log.warning("a request to a tool server is not answered: %.300s", why)
        number = request_id(request)
        error = {"jsonrpc": "2.0", "id": number, "error": {"code": SERVER_GONE, "message": why}}
        return b"" if number is None else json.dumps(error).encode()


class _WholeBody(httpx2.AsyncByteStream):
    """A body that is given as a whole, or `error` instead if the connection breaks before its end."""

    def __init__(self, inner: httpx2.AsyncByteStream, error: Callable[[Exception], bytes]) -> None:
        self._inner, self._error = inner, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            found = b"".join([piece async for piece in self._inner])
        except _BROKEN as exc:
            found = self._error(exc)
        yield found

    async def aclose(self) -> None:
        await self._inner.aclose()
