"""`/mcp` at MCP's revision of 2026-07-28: every POST stands alone, and an episode's id says whose tools it has.

The id comes in the header `Tandem-Episode-Id` or as `_meta["tandem/episode-id"]`, as our samplers send both. A tool
call without one gets a set of tool processes for itself, also over the rounds in which its server asks the client for input.
Closing the connection cancels the request.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers as StarletteHeaders

from sampler.mcp_docker.links.errors import GatewayBusy, Refused, ServerGone, StartFailed
from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.links.messages import SERVER_GONE, Message, answer, encoded, refusal
from sampler.mcp_docker.requests.client_profile import client_profile
from sampler.mcp_docker.requests.delivery import Delivery
from sampler.mcp_docker.sessions.gateway_session import ASK_S, GatewaySession
from sampler.mcp_docker.sessions.modern_session import (
    SERVERS_STATE,
    SERVERS_STATE_MARK,
    STATE_MARK,
    ModernSession,
    in_modern_words,
)
from sampler.mcp_docker.sessions.offers import merged_capabilities, merged_instructions
from sampler.mcp_docker.sessions.sessions import Sessions
from sampler.mcp_docker.starting.tool_set import Profile
from shared.http.asgi import HttpRefusal, HttpRequest, retry_after
from shared.mcp.revision import EPISODE_HEADER, EPISODE_KEY

_METHODS = frozenset(
    (
        *("completion/complete", "prompts/get", "prompts/list", "resources/list", "resources/read"),
        *("resources/templates/list", "server/discover", "subscriptions/listen", "tools/call", "tools/list"),
    )
)


class ModernEndpoint:
    """The revision without sessions over HTTP."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def serve(self, request: HttpRequest, version: str, message: Message) -> None:
        """Raises HttpRefusal."""
        if "method" not in message:
            raise HttpRefusal(
                400, refusal(None, INVALID_REQUEST, "expected a request: this revision has no answers to servers")
            )
        if "id" not in message:
            unserved = unsupported_protocol_version_rejection(version)
            if unserved is not None:
                raise _rejected(None, unserved)
            await request.answer(202)
            return
        route = _route(request, message)
        profile = client_profile(message["id"], route.client_capabilities)
        if message["method"] not in _METHODS:
            why = f"method {message['method'][:100]!r} is not supported"
            raise HttpRefusal(404, refusal(message["id"], METHOD_NOT_FOUND, why))
        async with self._session(request, message, profile) as session:
            with session.connected():
                await self._answer(request, session, message)

    async def _answer(self, request: HttpRequest, session: ModernSession, message: Message) -> None:
        params = message.get("params", {})
        if message["method"] == "server/discover":
            result = encoded(answer(message["id"], _discovery(session)))
            await request.answer(200, encoded(in_modern_words("server/discover", result)))
            return
        if message["method"] == "subscriptions/listen":
            requested = params.get("notifications")
            subscription = await session.subscribe(message["id"], requested if isinstance(requested, dict) else {})
            try:
                await Delivery(request, session, subscription, None).run()
            finally:
                await session.unsubscribe(subscription)
            return
        call_s = self._sessions.rules.call_s
        await self._require_true_headers(request, session, message, min(ASK_S, call_s))
        try:
            exchange = session.begin(message)
        except GatewayBusy as exc:
            raise HttpRefusal(
                429, refusal(message["id"], -32000, f"busy: {exc}"), retry_after(exc.retry_after_s)
            ) from exc
        try:
            await session.ask_in_time(exchange, message, b"", call_s)
            await ModernDelivery(request, session, exchange, call_s, message["method"]).run()
        finally:
            session.end_exchange(exchange)
            self._sessions.calls.count(exchange.outcome, exchange.began)

    async def _require_true_headers(
        self, request: HttpRequest, session: ModernSession, message: Message, within_s: float
    ) -> None:
        """`Mcp-Param-*` say what the arguments say, for tools that ask for them."""
        if message["method"] != "tools/call":
            return
        params = message["params"]
        try:
            async with asyncio.timeout(within_s):
                tool = await session.router.tool(params.get("name"))
        except (Refused, ServerGone, TimeoutError):
            return  # the call itself will say so
        arguments = params.get("arguments")
        rejection = validate_mcp_param_headers(
            tool.get("inputSchema"),
            arguments if isinstance(arguments, dict) else {},
            StarletteHeaders(raw=request.raw_headers),  # unlike a dict, it shows a header that comes twice
        )
        if rejection is not None:
            raise _rejected(message["id"], rejection)

    @asynccontextmanager
    async def _session(self, request: HttpRequest, message: Message, profile: Profile) -> AsyncIterator[ModernSession]:
        """Of the request's episode; without one, for this request alone. Raises HttpRefusal."""
        meta = message["params"]["_meta"]
        given = request.headers.get(EPISODE_HEADER.lower()) or meta.get(EPISODE_KEY)
        episode = given if isinstance(given, str) and given else None
        try:
            if episode is not None:
                known_as = f"{profile.capabilities_json} {episode}"
                session = await self._sessions.of_episode(known_as, profile, ModernSession)
            elif (waiting := self._waiting(message)) is not None:
                session = waiting
            else:
                session = await self._sessions.open(profile, ModernSession)
        except GatewayBusy as exc:
            raise HttpRefusal(
                503, refusal(message["id"], -32000, f"busy: {exc}"), retry_after(exc.retry_after_s)
            ) from exc
        except StartFailed as exc:
            raise HttpRefusal(502, refusal(message["id"], INTERNAL_ERROR, str(exc))) from exc
        except ServerGone as exc:
            raise HttpRefusal(502, refusal(message["id"], SERVER_GONE, str(exc))) from exc
        assert isinstance(session, ModernSession)
        try:
            yield session
        finally:
            if episode is None and not session.is_needed:
                await self._sessions.end(session, "one_request")

    def _waiting(self, message: Message) -> GatewaySession | None:
        """The session whose server waits for the input that this repeated request brings."""
        state = message["params"].get("requestState")
        if not isinstance(state, str):
            return None
        mark = SERVERS_STATE_MARK if SERVERS_STATE.match(state) else STATE_MARK
        session = self._sessions.of(state.partition(mark)[0])
        return session if isinstance(session, ModernSession) and session.episode is None else None


class ModernDelivery(Delivery):
    """Answers of servers, in the words of the new revision."""

    def __init__(
        self, request: HttpRequest, session: ModernSession, exchange: Exchange, call_s: float, method: str
    ) -> None:
        super().__init__(request, session, exchange, call_s)
        self._method, self._words = method, session.in_own_words

    def _answer(self, body: bytes) -> bytes:
        self._message = self._words(self._exchange, in_modern_words(self._method, body))
        return encoded(self._message)

    def _status(self, body: bytes) -> int:
        error = self._message.get("error")
        code: Any = error.get("code") if isinstance(error, dict) else None
        return ERROR_CODE_HTTP_STATUS.get(code, self._exchange.status)


def _route(request: HttpRequest, message: Message) -> InboundModernRoute:
    """Raises HttpRefusal."""
    twice = find_duplicated_routing_header(request.named_headers)
    if twice is not None:
        why = f"{twice} header appears more than once"
        raise HttpRefusal(400, refusal(message["id"], HEADER_MISMATCH, why))
    route = classify_inbound_request(message, headers=request.headers)
    if isinstance(route, InboundLadderRejection):
        raise _rejected(message["id"], route)
    return route


def _rejected(number: int | str | None, rejection: InboundLadderRejection) -> HttpRefusal:
    status = ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
    return HttpRefusal(status, refusal(number, rejection.code, rejection.message, rejection.data))


def _discovery(session: GatewaySession) -> Message:
    links = session.tool_set.links
    result: Message = {
        "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
        "capabilities": merged_capabilities(links.values()),
    }
    merged = merged_instructions(links)
    if merged is not None:
        result["instructions"] = merged
    return result
