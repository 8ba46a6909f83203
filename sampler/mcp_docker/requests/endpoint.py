"""`/mcp`: MCP's streamable HTTP, in the revisions that have a handshake and sessions.

POST without a session    `initialize`: a new session, with a set of tool servers of its own
POST                      a request: its answer as JSON, or as an event stream once there is something to tell before it;
                          a notification, or the answer to a server's request: 202
GET                       a listening stream
DELETE                    the end of the session; answered when nothing of it is left

It is ours, not the SDK's: a call that is passed to a tool's process takes it 0.24 ms of processor time, and the SDK's `MCPServer`
(2.3.0, JSON replies, uvicorn) 0.56 ms for one that it answers itself; 64 callers of `scripts.bench.raw_mcp_client` for each, one
after the other.
"""

import asyncio
import logging

from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from sampler.mcp_docker.links.errors import GatewayBusy, Refused, StartFailed
from sampler.mcp_docker.links.messages import Message, NotAMessage, RequestId, answer, decoded, refusal
from sampler.mcp_docker.requests.client_profile import client_profile
from sampler.mcp_docker.requests.delivery import Delivery, accepts_events
from sampler.mcp_docker.requests.modern import ModernEndpoint
from sampler.mcp_docker.sessions.gateway_session import GatewaySession
from sampler.mcp_docker.sessions.modern_session import SERVER_INFO
from sampler.mcp_docker.sessions.offers import merged_capabilities, merged_instructions
from sampler.mcp_docker.sessions.sessions import Sessions
from sampler.mcp_docker.starting.tool_set import Profile
from shared.http.asgi import HttpRefusal, HttpRequest, retry_after
from shared.mcp.http_bodies import SESSION_HEADER

log = logging.getLogger(__name__)

SERVICE_UNAVAILABLE = 503
TOO_MANY = 429


class McpEndpoint:
    """The handshake revisions over HTTP."""

    def __init__(self, sessions: Sessions, max_body_bytes: int) -> None:
        self._sessions = sessions
        self._max_body_bytes = max_body_bytes
        self._modern = ModernEndpoint(sessions)

    async def serve(self, request: HttpRequest) -> None:
        """Raises HttpRefusal."""
        match request.method:
            case "POST":
                await self._post(request, await request.body(self._max_body_bytes))
            case "GET":
                await self._listen(request, self._session_of(request))
            case "DELETE":
                await self._sessions.end(self._session_of(request), "client")
                await request.answer(200)
            case _:
                raise HttpRefusal(405, "expected POST, GET or DELETE", [(b"allow", b"POST, GET, DELETE")])

    async def _post(self, request: HttpRequest, body: bytes) -> None:
        try:
            message = decoded(body)
        except NotAMessage as exc:
            raise HttpRefusal(400, refusal(None, exc.code, str(exc))) from exc
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS and SESSION_HEADER not in request.headers:
            await self._modern.serve(request, version, message)
            return
        if message.get("method") == "initialize" and "id" in message:
            await self._initialize(request, message)
            return
        session = self._session_of(request)
        with session.connected():
            if "method" in message and "id" in message:
                await self._request(request, session, message, body)
                return
            # Before the wait for a sign of life: no later message overtakes it.
            if "method" in message:
                await session.notify(message, body)
            else:
                await session.answer_server(message)
            await session.note_sign(request)
            await request.answer(202)

    async def _initialize(self, request: HttpRequest, message: Message) -> None:
        if SESSION_HEADER in request.headers:
            raise HttpRefusal(400, refusal(message["id"], INVALID_REQUEST, "this session is initialized already"))
        params = message.get("params", {})
        revision, capabilities = params.get("protocolVersion"), params.get("capabilities")
        profile = client_profile(message["id"], capabilities)
        session = await self.opened(request, message["id"], profile)
        log.info("session opened id=%s client=%.100r", session.id[:8], params.get("clientInfo"))
        links = session.tool_set.links
        result: Message = {
            "protocolVersion": revision if revision in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": merged_capabilities(links.values()),
            "serverInfo": SERVER_INFO,
        }
        merged = merged_instructions(links)
        if merged is not None:
            result["instructions"] = merged
        headers = [(SESSION_HEADER.encode(), session.id.encode())]
        await request.answer_json(200, answer(message["id"], result), headers)

    async def opened(self, request: HttpRequest, number: RequestId, profile: Profile) -> GatewaySession:
        """A new session; none is left behind if its client is gone before. Raises HttpRefusal."""
        opening = asyncio.ensure_future(self._sessions.open(profile))
        broken = asyncio.ensure_future(request.until_broken())
        try:
            await asyncio.wait({opening, broken}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            broken.cancel()
            if not opening.done():
                opening.cancel()
                await asyncio.wait({opening})
        if opening.cancelled():
            raise HttpRefusal(400, "the client went away")
        try:
            return opening.result()
        except GatewayBusy as exc:
            raise busy(exc, number, SERVICE_UNAVAILABLE) from exc
        except StartFailed as exc:
            raise HttpRefusal(502, refusal(number, INTERNAL_ERROR, str(exc))) from exc

    def _session_of(self, request: HttpRequest) -> GatewaySession:
        """Raises HttpRefusal."""
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            raise HttpRefusal(400, refusal(None, INVALID_REQUEST, f"the header {SESSION_HEADER} is missing"))
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, LATEST_HANDSHAKE_VERSION)
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            known = ", ".join(HANDSHAKE_PROTOCOL_VERSIONS)
            why = f"{MCP_PROTOCOL_VERSION_HEADER} is {version[:40]!r}; expected one of {known}"
            raise HttpRefusal(400, refusal(None, INVALID_REQUEST, why))
        session = self._sessions.of(session_id)
        if session is None:
            raise HttpRefusal(404, refusal(None, INVALID_REQUEST, "there is no such session: it was ended"))
        return session

    async def _request(self, request: HttpRequest, session: GatewaySession, message: Message, body: bytes) -> None:
        try:
            exchange = session.begin(message)
        except Refused as exc:
            raise HttpRefusal(400, refusal(message["id"], exc.code, str(exc))) from exc
        except GatewayBusy as exc:
            raise busy(exc, message["id"], TOO_MANY) from exc
        try:
            call_s = self._sessions.rules.call_s
            await session.note_sign(request)
            await session.ask_in_time(exchange, message, body, call_s)
            await Delivery(request, session, exchange, call_s).run()
        finally:
            session.end_exchange(exchange)
            self._sessions.calls.count(exchange.outcome, exchange.began)

    async def _listen(self, request: HttpRequest, session: GatewaySession) -> None:
        if not accepts_events(request):
            raise HttpRefusal(406, "a listening stream is text/event-stream, which the request does not accept")
        stream = session.listen()
        session.is_broken = False  # until this one breaks
        with session.connected():
            try:
                await Delivery(request, session, stream, None).run()
            finally:
                session.stop_listening(stream)


def busy(exc: GatewayBusy, number: RequestId | None, status: int) -> HttpRefusal:
    return HttpRefusal(status, refusal(number, -32000, f"busy: {exc}"), retry_after(exc.retry_after_s))
