"""A session for MCP's revision of 2026-07-28, which has none: the requests of one episode id, over many connections.

Requests of several connections may have the same id and progress token, so servers get numbers of our own. What the revision has
no words for is translated: a server's request to the client becomes a result that asks for input (`input_required`), and the
client's repeated request brings it; results name their type; lists say that they may not be cached.
"""

import asyncio
import contextlib
import itertools
import re
import secrets
from typing import Any

from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.methods import CACHEABLE_METHODS

from sampler.mcp_docker.links.errors import Refused, ServerGone
from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.links.messages import (
    Message,
    RequestId,
    answer,
    asks_for_input,
    decoded,
    encoded,
    is_id,
    refusal,
)
from sampler.mcp_docker.links.server_changes import LIST_FLAGS
from sampler.mcp_docker.links.server_link import ServerLink
from sampler.mcp_docker.sessions.gateway_session import ASK_S, GatewaySession

SERVER_INFO = {"name": "tandem-mcp-docker", "version": "1"}
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
# Of every request of the new revision; a server that had the handshake refuses it.
_NUMBER = re.compile(r"[0-9]{1,18}")  # of a request of ours
_ENVELOPE = (PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_KEY)
STATE_MARK = "."  # in a request's state, after the session's id: in no id
SERVERS_STATE_MARK = "~"  # the same, before the state that a server keeps itself
SERVERS_STATE = re.compile(r"^[A-Za-z0-9_-]{32}~")
MAX_URIS = 100  # of the resources of one subscription
PAUSED_S = 300.0  # how long a request waits for its client's input


class Subscription(Exchange):
    """A `subscriptions/listen` stream, with what its client asked for."""

    __slots__ = ("flags", "uris")

    def __init__(self, request_id: RequestId, requested: Message, uris: list[str]) -> None:
        """`uris`: of the resources whose changes its servers tell."""
        super().__init__(request_id)
        self.flags = {flag: True for flag in LIST_FLAGS.values() if requested.get(flag) is True}
        self.uris = uris
        granted: Message = dict(self.flags) | ({"resourceSubscriptions": uris} if uris else {})
        self.notify(
            {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": granted},
            }
        )

    def notify(self, message: Message) -> None:
        params = message.get("params", {})
        meta = params.get("_meta") if isinstance(params.get("_meta"), dict) else {}
        self.push(encoded(message | {"params": params | {"_meta": meta | {SUBSCRIPTION_KEY: self.request_id}}}))

    def wants(self, message: Message) -> bool:
        method = message["method"]
        if method == "notifications/resources/updated":
            return message.get("params", {}).get("uri") in self.uris
        return LIST_FLAGS.get(method) in self.flags


class ModernSession(GatewaySession):
    """See the module."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sent_ids = itertools.count(1)
        self._subscriptions: set[Subscription] = set()
        self._subscribing = asyncio.Lock()  # a resource that one stream leaves may be what another asks for
        self._paused: dict[str, Exchange] = {}  # by request state: they wait for input of the client
        self._awaits_repetition = False  # of a request whose state its server keeps itself

    def begin(self, message: Message) -> Exchange:
        """Several connections may use one id at the same time: the key is a number of ours."""
        number = message["id"]
        exchange = super().begin(message | {"id": next(self._sent_ids)})
        exchange.sent_id, exchange.request_id = exchange.request_id, number
        exchange.is_modern = True
        return exchange

    def broke_off(self) -> None:
        """Here this is how a client cancels a request and ends a stream. Only its lease shows whether it lives."""

    async def ask(self, exchange: Exchange, message: Message, body: bytes) -> None:
        params = message.get("params", {})
        meta = params.get("_meta")
        level = meta.get(LOG_LEVEL_KEY) if isinstance(meta, dict) else None
        exchange.wants_log = level is not None
        exchange.log_level = level if isinstance(level, str) else None
        state = params.get("requestState")
        if isinstance(state, str) and state not in self._paused and await self._keeps_state(message):
            self._awaits_repetition = False
            if self.episode is None:  # else it has no session's id before it
                params = params | {"requestState": SERVERS_STATE.sub("", state)}
        elif isinstance(state, str):
            try:
                await self._continue(exchange, state, params)
            except Refused as exc:
                exchange.finish(encoded(refusal(exchange.request_id, exc.code, str(exc))))
            return
        known = {key: value for key, value in meta.items() if key not in _ENVELOPE} if isinstance(meta, dict) else {}
        if exchange.token is not None:
            known["progressToken"] = exchange.sent_id
        sent = message | {"id": exchange.sent_id, "params": params | {"_meta": known}}
        await super().ask(exchange, sent, encoded(sent))

    async def _keeps_state(self, message: Message) -> bool:
        """Does the server of this request keep the state of its requests itself?"""
        try:
            link, _ = await self.router.target(message)
        except (Refused, ServerGone):
            return False
        return not link.has_handshake

    def in_own_words(self, exchange: Exchange, message: Message) -> Message:
        """An answer. A server's state leads its repeated request to this session, if no episode's id does."""
        result = message.get("result")
        link = exchange.link
        if self.episode is not None or link is None or link.has_handshake or not asks_for_input(result):
            return message
        state = result.get("requestState")
        if not isinstance(state, str):
            return message
        self._awaits_repetition = True
        return message | {"result": result | {"requestState": f"{self.id}{SERVERS_STATE_MARK}{state}"}}

    async def _continue(self, exchange: Exchange, state: str, params: Message) -> None:
        """A repeated request with the client's input: its server has been waiting for that."""
        waiting = self._paused.pop(state, None)
        if waiting is None:
            raise Refused(INVALID_PARAMS, "requestState is unknown: the request was answered, or waited too long")
        given = params.get("inputResponses")
        link = waiting.link
        if link is not None and not waiting.has_ended:
            link.in_flight[waiting.sent_id] = exchange
            exchange.link, exchange.sent_id = link, waiting.sent_id
        for key, value in (given if isinstance(given, dict) else {}).items():
            if _NUMBER.fullmatch(key) and isinstance(value, dict):
                await self.answer_server(answer(int(key), value))
        if waiting.final is not None:  # its server did not wait for this input, or asked for more in the meantime
            exchange.finish(encoded(decoded(waiting.final) | {"id": exchange.request_id}), waiting.status)

    def end_exchange(self, exchange: Exchange) -> None:
        for number, known in list(self.exchanges.items()):
            if known is exchange:
                del self.exchanges[number]
        if exchange.link is not None and exchange.link.in_flight.get(exchange.sent_id) is exchange:
            exchange.link.forget(exchange)

    @property
    def is_needed(self) -> bool:
        """A request is in flight, or waits for its client's input."""
        return bool(self.exchanges or self._paused or self._awaits_repetition)

    async def subscribe(self, request_id: RequestId, requested: Message) -> Subscription:
        """Servers of the handshake tell the changes of a resource to those alone who have subscribed to it."""
        subscribed_uris = requested.get("resourceSubscriptions")
        uris = (
            list(dict.fromkeys(uri for uri in subscribed_uris if isinstance(uri, str)))
            if isinstance(subscribed_uris, list)
            else []
        )
        able: list[str] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S), self._subscribing:
                for uri in uris[:MAX_URIS]:
                    if await self._tell_server("resources/subscribe", uri):
                        able.append(uri)
        subscription = Subscription(request_id, requested, able)  # without a pause since the lock was held
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S), self._subscribing:
                still = {uri for other in self._subscriptions for uri in other.uris}
                for uri in subscription.uris:
                    if uri not in still and not self.has_ended:
                        await self._tell_server("resources/unsubscribe", uri)

    async def _tell_server(self, method: str, uri: str) -> bool:
        """Has the server of this resource agreed?"""
        params = {"uri": uri}
        try:
            link, _ = await self.router.target({"method": method, "params": params})
            await link.ask(method, params)
        except (Refused, ServerGone):
            return False
        return True

    def on_request(self, link: ServerLink, message: Message) -> None:
        """Interrupt the latest request of that server: its client brings the answer with a repeated one."""
        exchange = next(reversed(link.in_flight.values()), None)
        number = self._note_asked(link, message) if exchange is not None else None
        if exchange is None or number is None:
            link.reply(refusal(message["id"], METHOD_NOT_FOUND, f"the client does not serve {message['method']}"))
            return
        state = f"{self.id}{STATE_MARK}{secrets.token_urlsafe(16)}"
        waiting = Exchange(exchange.request_id)
        waiting.link, waiting.sent_id = link, exchange.sent_id
        link.in_flight[exchange.sent_id] = self._paused[state] = waiting
        asyncio.get_running_loop().call_later(PAUSED_S, self._give_up, state)
        inner = {key: message[key] for key in ("method", "params") if key in message}
        result = {"resultType": "input_required", "inputRequests": {str(number): inner}, "requestState": state}
        exchange.finish(encoded(answer(exchange.request_id, result)))

    def _give_up(self, state: str) -> None:
        waiting = self._paused.pop(state, None)
        if waiting is not None and waiting.link is not None:
            waiting.link.forget(waiting)

    def on_notification(self, link: ServerLink, message: Message, body: bytes) -> None:
        method = message["method"]
        if method == "notifications/progress":
            params = message.get("params", {})
            token = params.get("progressToken")
            exchange = link.in_flight.get(token) if is_id(token) else None
            if exchange is not None and exchange.token is not None:
                exchange.push(encoded(message | {"params": params | {"progressToken": exchange.token}}))
        elif method == "notifications/message":
            exchange = next(reversed(link.in_flight.values()), None)
            if exchange is not None and exchange.wants_log:
                exchange.push(body)
        for subscription in self._subscriptions:
            if subscription.wants(message):
                subscription.notify(message)

    async def end(self) -> None:
        for subscription in self._subscriptions:
            result = {"resultType": "complete", "_meta": {SUBSCRIPTION_KEY: subscription.request_id}}
            subscription.finish(encoded(answer(subscription.request_id, result)))
        await super().end()


def in_modern_words(method: str, body: bytes) -> Message:
    """An answer of a server, for a client of the new revision."""
    message = decoded(body)
    result = message.get("result")
    if not isinstance(result, dict):
        return message
    meta = result.get("_meta")
    added: Message = {"_meta": {SERVER_INFO_META_KEY: SERVER_INFO} | (meta if isinstance(meta, dict) else {})}
    if "resultType" not in result:
        added["resultType"] = "complete"
    if method in CACHEABLE_METHODS and not asks_for_input(result):
        added |= {"ttlMs": 0, "cacheScope": "private"}
    return message | {"result": result | added}
