"""The HTTP client for a tool server that is given by its URL: what is no answer of the server becomes an error of infrastructure.

The SDK replaces a page of a proxy, or of a login, by an error with a code that tools use too. So a response is replaced here,
where its status is known, by a JSON-RPC error with the code SERVER_GONE that quotes it:
  * status 500 and above (also with a JSON-RPC message: the server failed), 401, 403 and 407 (the gateway's own rights)
  * 404 within a session: the session has ended
  * every body that is no JSON-RPC message
A JSON-RPC message with another status, such as 404 for an unknown method, is the server's answer.

A server of 2026-07-28 has no sessions: a broken connection is the end of one request. The SDK ends its whole transport with the
first connection that breaks, and with that every call in flight. `StatelessClient` answers the request with an error instead, and
the next one finds its own connection.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx2
from mcp_types import JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json

from sampler.mcp_docker.links.messages import SERVER_GONE, RequestId
from shared.mcp.busy import Line, PatientClient
from shared.mcp.http_bodies import EVENTS, JSON, SESSION_HEADER, request_id
from shared.outside_text import clipped, text_of

log = logging.getLogger(__name__)

_BROKEN = (httpx2.HTTPError, OSError)
_ERROR, _SERVER_ERROR = 400, 500
_NO_RIGHTS = (401, 403, 407)
_TOLD_CHARS = 200


class RemoteClient(PatientClient):
    """`quoted`: makes an error's text fit to be shown."""

    def __init__(self, line: Line, quoted: Callable[[str], str], **options: Any) -> None:
        super().__init__(line, **options)
        self._quoted = quoted

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **options)
        if request.method != "POST" or not options.get("stream") or _is_followed(response) or _has_events(response):
            return response
        try:
            why = await _failure(request, response)
        finally:
            if not response.is_closed:
                await response.aclose()
        number = None if why is None else request_id(request)  # None: a notification has no answer
        return response if why is None or number is None else self._replaced(request, number, why)

    def _replaced(self, request: httpx2.Request, number: RequestId, why: str) -> httpx2.Response:
        reason = self._quoted(why)
        log.warning("a request to a tool server is not answered: %.300s", reason)
        error = {"jsonrpc": "2.0", "id": number, "error": {"code": SERVER_GONE, "message": reason}}
        return httpx2.Response(
            httpx2.codes.BAD_GATEWAY,
            headers={"Content-Type": JSON},
            content=json.dumps(error).encode(),
            request=request,
        )


class StatelessClient(RemoteClient):
    """See the module."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            return await super().send(request, **options)
        except _BROKEN as exc:
            number = request_id(request)
            if number is None:
                raise
            return self._replaced(request, number, f"{type(exc).__name__}: {exc}".rstrip(": "))


async def _failure(request: httpx2.Request, response: httpx2.Response) -> str | None:
    """Of infrastructure; None: the body, which is read, is the server's answer."""
    body = await response.aread()
    status = response.status_code
    is_lost = status == httpx2.codes.NOT_FOUND and SESSION_HEADER in request.headers
    if status < _SERVER_ERROR and status not in _NO_RIGHTS and not is_lost and _is_message(response, body):
        return None
    details = clipped(" ".join(text_of(body[:2000]).split()), _TOLD_CHARS)
    expected = "" if status >= _ERROR else "; expected a JSON-RPC message"
    return f"HTTP {status} {response.reason_phrase}: {details}".rstrip(": ") + expected


def _is_message(response: httpx2.Response, body: bytes) -> bool:
    """With another status than a success the SDK takes errors only."""
    if not _kind(response).startswith(JSON):
        return False
    try:
        if response.status_code >= _ERROR:
            return isinstance(jsonrpc_message_adapter.validate_json(body, by_name=False), JSONRPCError)
        message = from_json(body)
    except (ValidationError, ValueError):
        return False
    return isinstance(message, dict) and bool(message.keys() & {"result", "error"})


def _is_followed(response: httpx2.Response) -> bool:
    """The SDK follows a redirect of a POST within its origin, if it stays a POST."""
    following = response.next_request
    return following is not None and following.method == "POST" and following.url.host == response.request.url.host


def _has_events(response: httpx2.Response) -> bool:
    return response.status_code < _ERROR and EVENTS in _kind(response)


def _kind(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).lower()
