"""Tool calls of a session over streamable HTTP: each is one POST, past the SDK's dispatcher and its tasks and queues.

    call ─POST─▶ JSON: the answer
             └─▶ events: progress, the server's own requests, the answer
                        └─ they end without it ─▶ GET with Last-Event-ID: the rest of the events

The handshake, lists, pings, listening and the end of the session stay with the SDK, and so do all calls at 2026-07-28, which
carry more headers. Answers and errors are the SDK's types, with its codes, and pass through the same client: its bounds,
authentication and waits for a busy server hold. A call of 20 bytes takes a third of the processor time that the SDK takes.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.client.streamable_http import DEFAULT_RECONNECTION_DELAY_MS, LAST_EVENT_ID, MAX_RECONNECTION_ATTEMPTS
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolResult,
    CancelledNotification,
    CancelledNotificationParams,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from sampler.core.tools.incoming import PROGRESS, plain
from shared.mcp.busy import PatientClient
from shared.mcp.http_bodies import EVENTS, JSON
from shared.mcp.messages import fault_of

_FIRST_ID = 1 << 32  # above the SDK's own, which count from 0
_CANCEL_S = 5.0
_MAX_DELAY_S = 60.0  # that a server may request before the rest of its events is fetched
_ERROR_STATUS = 400
_Answer = JSONRPCResponse | JSONRPCError


class CallProgress:
    """Who hears of the progress of which call in flight. Its reports come among the call's events, or on the session's stream."""

    def __init__(self) -> None:
        self.listeners: dict[int, ProgressFnT] = {}  # by the call's id

    async def report(self, message: JSONRPCNotification) -> None:
        params = message.params or {}
        token = params.get("progressToken")
        listener = self.listeners.get(token) if isinstance(token, int) else None
        if listener is not None and isinstance(params.get("progress"), int | float):
            await listener(params["progress"], params.get("total"), params.get("message"))


class PostedCalls:
    """Of one session. `on_list_changed`: the server reports so in the events of a call."""

    def __init__(
        self,
        http: PatientClient,
        session: ClientSession,
        url: str,
        max_event_bytes: int,
        progress: CallProgress,
        on_list_changed: Callable[[], None],
    ) -> None:
        self._http = http
        self._session = session
        self._url = httpx2.URL(url)
        self._max_event_bytes = max_event_bytes
        self._on_list_changed = on_list_changed
        self._next_id = _FIRST_ID
        self._progress = progress

    async def call(self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT) -> CallToolResult:
        """Raises MCPError, ValidationError, and httpx2.HTTPError or OSError, with which the session is lost."""
        number, self._next_id = self._next_id, self._next_id + 1
        params = {"name": name, "arguments": dict(arguments), "_meta": {"progressToken": number}}
        self._progress.listeners[number] = on_progress
        try:
            answer = await self._exchange({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        except asyncio.CancelledError:
            await self._cancel(number)
            raise
        finally:
            del self._progress.listeners[number]
        known = plain(answer)
        if isinstance(known, JSONRPCError):
            raise MCPError.from_jsonrpc_error(known)
        assert isinstance(known, JSONRPCResponse), "an answer stays an answer"
        return CallToolResult.model_validate(known.result, by_name=False)

    async def _cancel(self, number: int) -> None:
        """A courtesy: at this revision, a closed connection cancels nothing."""
        params = CancelledNotificationParams(request_id=number, reason="no longer needed")
        with contextlib.suppress(TimeoutError, MCPError):
            async with asyncio.timeout(_CANCEL_S):
                await self._session.send_notification(CancelledNotification(params=params))

    # ------------------------------------------------------------------ the exchange

    async def _exchange(self, message: Mapping[str, Any]) -> _Answer:
        """The answer, under any id: the exchange is its own."""
        response = await self._send(message)
        try:
            kind = response.headers.get("content-type", "").lower()
            if response.status_code >= _ERROR_STATUS:
                raise await _refusal(response, kind)
            if response.status_code == httpx2.codes.ACCEPTED:
                raise MCPError(INVALID_REQUEST, "server answered a request with 202 Accepted")
            if response.has_redirect_location:
                raise MCPError(INVALID_REQUEST, "a redirect in the middle of a session was not followed")
            if kind.startswith(JSON):
                return _read(await response.aread())
            if not kind.startswith(EVENTS):
                raise MCPError(INVALID_REQUEST, f"Unexpected content type: {kind}")
            events = _Events()
            answer = await self._of_events(response, events)
        finally:
            await response.aclose()
        return answer if answer is not None else await self._resumed(events)

    async def _send(self, message: Mapping[str, Any]) -> httpx2.Response:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        headers = {**self._headers, "accept": f"{JSON}, {EVENTS}", "content-type": JSON}
        return await self._http.post_message(self._url, text.encode("utf-8", "replace"), headers)

    @property
    def _headers(self) -> dict[str, str]:
        version = self._session.protocol_version
        return {**({MCP_PROTOCOL_VERSION_HEADER: version} if version else {}), **self._http.session_headers}

    async def _of_events(self, response: httpx2.Response, events: "_Events") -> _Answer | None:
        """The answer; None: the events ended without it. Raises MCPError if they break the protocol."""
        try:
            async for event in httpx2.EventSource(response, max_event_size=self._max_event_bytes):
                events.note(event)
                if event.event != "message" or not event.data:
                    continue
                message = _parsed(event.data.encode(), "Failed to parse SSE message")
                if isinstance(message, JSONRPCResponse | JSONRPCError):
                    return message
                await self._take(message)
        except httpx2.SSEError as exc:
            raise MCPError(CONNECTION_CLOSED, f"SSE stream failed: {exc}") from exc
        except (httpx2.HTTPError, OSError):  # it broke off: as if it had ended
            return None
        return None

    async def _resumed(self, events: "_Events") -> _Answer:
        """The answer among the events after the last one received. Raises MCPError."""
        attempts = 0
        while events.last_id and attempts < MAX_RECONNECTION_ATTEMPTS:
            await asyncio.sleep(events.delay_s)
            headers = {**self._headers, "accept": EVENTS, LAST_EVENT_ID: events.last_id}
            try:
                response = await self._http.send(
                    self._http.build_request("GET", self._url, headers=headers), stream=True, follow_redirects=False
                )
            except (httpx2.HTTPError, OSError):
                attempts += 1
                continue
            try:
                if response.status_code != httpx2.codes.OK:
                    attempts += 1
                    continue
                answer = await self._of_events(response, events)
            finally:
                await response.aclose()
            if answer is not None:
                return answer
            attempts = 0  # a server may end its events as often as it likes, within the call's time
        why = "and reconnection attempts were exhausted" if events.last_id else "without a response"
        raise MCPError(CONNECTION_CLOSED, f"SSE stream ended {why}")

    async def _take(self, message: JSONRPCMessage) -> None:
        """What a server sends among the events of a call, besides its answer."""
        if isinstance(message, JSONRPCRequest):
            await self._reply(message)
        elif isinstance(message, JSONRPCNotification):
            if message.method == PROGRESS:
                await self._progress.report(message)
            elif message.method == "notifications/tools/list_changed":
                self._on_list_changed()

    async def _reply(self, request: JSONRPCRequest) -> None:
        """A ping is answered; nothing else was offered in the handshake."""
        outcome: dict[str, Any] = {"result": {}}
        if request.method != "ping":
            outcome = {"error": {"code": METHOD_NOT_FOUND, "message": f"{request.method} is not supported"}}
        response = await self._send({"jsonrpc": "2.0", "id": request.id, **outcome})
        await response.aclose()


class _Events:
    """How the rest of the events is fetched, if they end early."""

    def __init__(self) -> None:
        self.last_id = ""
        self.delay_s = DEFAULT_RECONNECTION_DELAY_MS / 1e3

    def note(self, event: httpx2.ServerSentEvent) -> None:
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.delay_s = min(event.retry / 1e3, _MAX_DELAY_S)


def _read(body: bytes) -> _Answer:
    message = _parsed(body, "Failed to parse JSON response")
    if isinstance(message, JSONRPCResponse | JSONRPCError):
        return message
    raise MCPError(PARSE_ERROR, "Failed to parse JSON response: it is no answer")


def _parsed(text: bytes, fault: str) -> JSONRPCMessage:
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError as exc:
        raise MCPError(PARSE_ERROR, f"{fault}: {fault_of(exc)}") from exc


async def _refusal(response: httpx2.Response, kind: str) -> MCPError:
    """The error in the body of a response with an error's status, or one that stands for the status."""
    if kind.startswith(JSON):
        with contextlib.suppress(httpx2.StreamError, ValidationError):
            message = jsonrpc_message_adapter.validate_json(await response.aread(), by_name=False)
            if isinstance(message, JSONRPCError):
                return MCPError.from_jsonrpc_error(message)
    if response.status_code == httpx2.codes.NOT_FOUND:
        return MCPError(INVALID_REQUEST, "Session terminated")
    return MCPError(INTERNAL_ERROR, "Server returned an error response")
