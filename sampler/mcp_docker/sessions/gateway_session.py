"""One MCP session of a client: its requests on their way to the servers of its set, and what these send back.

Where a message of a server goes
  * progress: to the request that it is about
  * a request to the client (sampling, elicitation, roots), a log message: to the event stream of the request in flight with that
    server; without one, to the listening stream
  * changes of lists and resources: to the listening stream, and until there is one, into a bounded backlog
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator

from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND

from sampler.mcp_docker.links.errors import GatewayBusy, Refused, ServerGone
from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.links.messages import (
    SERVER_GONE,
    TIMED_OUT,
    Message,
    RequestId,
    answer,
    encoded,
    is_id,
    notification,
    progress_token,
    refusal,
)
from sampler.mcp_docker.links.server_link import BAD_GATEWAY, ServerLink
from sampler.mcp_docker.sessions.offers import Offers
from sampler.mcp_docker.sessions.rates import Rate
from sampler.mcp_docker.sessions.routing import Router
from sampler.mcp_docker.starting.tool_set import ToolSet
from shared.http.asgi import HttpRequest

MAX_BACKLOG = 100
MAX_ASKED = 100  # requests of servers that the client has not answered
ASK_S = 60.0  # for the gateway's own requests to servers, without which a client's request cannot be forwarded
GATEWAY_TIMEOUT = 504
_SIGN_OF_LIFE_S = 0.1
_CAPABILITY_OF = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}


# 23 methods: one client's session: a method for each message that it may send or get
class GatewaySession:
    """`listener`: the client's listening stream, if open. `idle_since`: None while a connection is open."""

    def __init__(self, session_id: str, tool_set: ToolSet, shared: Offers, max_calls: int, rate: Rate) -> None:
        self.id, self.tool_set = session_id, tool_set
        self.router = Router(tool_set.links, shared)
        self.client_capabilities = tool_set.profile.capabilities
        self.listener: Exchange | None = None
        self.exchanges: dict[RequestId, Exchange] = {}
        self.has_ended = False
        self.episode: str | None = None  # by which it is found, for clients without protocol sessions
        self.open_connections = 0
        self.last_seen = time.monotonic()
        self.is_broken = False  # a connection broke off, and nothing shows that the client lives
        self.is_unused = True  # nothing has come since it was opened
        self._backlog: deque[bytes] = deque(maxlen=MAX_BACKLOG)
        self._forwarded: dict[int, tuple[ServerLink, RequestId]] = {}
        self._numbers = itertools.count(1)
        self._max_calls, self._rate = max_calls, rate
        tool_set.belongs_to(self)

    # ------------------------------------------------------------------ from the client

    def begin(self, message: Message) -> Exchange:
        """Take a request in. Raises Refused and GatewayBusy."""
        number = message["id"]
        if number in self.exchanges:
            raise Refused(INVALID_REQUEST, f"a request with id {number!r} is in flight already")
        if len(self.exchanges) >= self._max_calls:
            raise GatewayBusy(
                f"{len(self.exchanges)} requests of this session are in flight, which is the maximum", 1.0
            )
        wait_s = self._rate.wait_s()
        if wait_s > 0:
            raise GatewayBusy("too many requests per second of this session", wait_s)
        exchange = self.exchanges[number] = Exchange(number, progress_token(message))
        return exchange

    async def ask_in_time(self, exchange: Exchange, message: Message, body: bytes, call_s: float) -> None:
        """`ask`, which itself may have to ask servers: for their lists, say. Later, `Delivery` bounds the time."""
        within_s = min(ASK_S, call_s)
        try:
            async with asyncio.timeout(within_s):
                await self.ask(exchange, message, body)
        except TimeoutError:
            why = f"the tool servers did not answer the gateway within {within_s:g} s"
            exchange.finish(encoded(refusal(exchange.request_id, TIMED_OUT, why)), GATEWAY_TIMEOUT)

    async def ask(self, exchange: Exchange, message: Message, body: bytes) -> None:
        """Answer a request, or forward it to its server; the answer ends `exchange`."""
        try:
            if message["method"] == "tools/call" or (
                (result := await self.router.own_answer(message["method"], message.get("params", {}))) is None
            ):
                link, known_as = await self.router.target(message)
                if not exchange.has_ended:  # the client may have cancelled it meanwhile
                    await link.forward(exchange, known_as, body if known_as is message else None)
                return
            exchange.finish(encoded(answer(exchange.request_id, result)))
        except Refused as exc:
            exchange.finish(encoded(refusal(exchange.request_id, exc.code, str(exc))))
        except ServerGone as exc:
            exchange.finish(encoded(refusal(exchange.request_id, SERVER_GONE, str(exc))), BAD_GATEWAY)

    def end_exchange(self, exchange: Exchange) -> None:
        self.exchanges.pop(exchange.request_id, None)
        if exchange.link is not None:
            exchange.link.forget(exchange)

    async def time_out(self, exchange: Exchange, after_s: float) -> None:
        why = f"the tool server did not answer within {after_s:g} s"
        await self.cancel(exchange, why)
        exchange.finish(encoded(refusal(exchange.request_id, TIMED_OUT, why)), GATEWAY_TIMEOUT)

    async def cancel(self, exchange: Exchange, why: str) -> None:
        """Tell the server that the answer is no longer awaited."""
        link = exchange.link
        if link is not None and not exchange.has_ended:
            link.forget(exchange)
            details = {"requestId": exchange.sent_id, "reason": why}
            with contextlib.suppress(ServerGone):
                await link.send(encoded(notification("notifications/cancelled", details)))

    async def notify(self, message: Message, body: bytes) -> None:
        """A notification of the client."""
        if message["method"] == "notifications/cancelled":
            params = message.get("params", {})
            number = params.get("requestId")
            exchange = self.exchanges.get(number) if is_id(number) else None
            if exchange is not None:
                await self.cancel(exchange, str(params.get("reason") or "the client cancelled it"))
                exchange.finish(None)
        elif message["method"] == "notifications/roots/list_changed":
            for link in (each for each in self.tool_set.links.values() if each.has_handshake):
                with contextlib.suppress(ServerGone):
                    await link.send(body)

    async def answer_server(self, message: Message) -> None:
        """The client's answer to a request of a server. An answer to nothing is ignored."""
        pending = self._forwarded.pop(message["id"], None) if isinstance(message["id"], int) else None
        if pending is not None:
            link, number = pending
            with contextlib.suppress(ServerGone):
                await link.take_answer(message | {"id": number})

    # ------------------------------------------------------------------ from the servers

    def on_request(self, link: ServerLink, message: Message) -> None:
        stream = self._stream_for(link)
        number = None if stream is None else self._note_asked(link, message)
        if stream is None or number is None:
            link.reply(refusal(message["id"], METHOD_NOT_FOUND, f"the client does not serve {message['method']}"))
            return
        stream.push(encoded(message | {"id": number}))

    def _note_asked(self, link: ServerLink, message: Message) -> int | None:
        """The id under which the client is asked; None: it does not serve such requests, or owes too many answers."""
        capability = _CAPABILITY_OF.get(message["method"])
        if capability not in self.client_capabilities or len(self._forwarded) >= MAX_ASKED:
            return None
        number = next(self._numbers)
        self._forwarded[number] = (link, message["id"])
        return number

    def on_notification(self, link: ServerLink, message: Message, body: bytes) -> None:
        match message["method"]:
            case "notifications/progress":
                token = message.get("params", {}).get("progressToken")
                for exchange in self._with_token(link, token):
                    exchange.push(body)
            case "notifications/cancelled":  # of its own request to the client
                self._withdraw(link, message)
            case "notifications/message":
                self._deliver(self._stream_for(link), body)
            case _:
                self._deliver(self.listener, body)

    def _with_token(self, link: ServerLink, token: object) -> Iterator[Exchange]:
        if token is not None:
            yield from (each for each in link.in_flight.values() if each.token == token)

    def _withdraw(self, link: ServerLink, message: Message) -> None:
        params = message.get("params", {})
        for number, pending in list(self._forwarded.items()):
            if pending == (link, params.get("requestId")):
                del self._forwarded[number]
                self._deliver(self._stream_for(link), encoded(message | {"params": params | {"requestId": number}}))

    def _stream_for(self, link: ServerLink) -> Exchange | None:
        latest = next(reversed(link.in_flight.values()), None)
        return latest if latest is not None else self.listener

    def _deliver(self, stream: Exchange | None, body: bytes) -> None:
        if stream is not None:
            stream.push(body)
        elif body not in self._backlog:
            self._backlog.append(body)

    # ------------------------------------------------------------------ streams and lease

    def listen(self) -> Exchange:
        """A listening stream. A newer one replaces it: its client has lost the older."""
        if self.listener is not None:
            self.listener.finish(None)
        self.listener = Exchange(0)
        while self._backlog:
            self.listener.push(self._backlog.popleft())
        return self.listener

    def stop_listening(self, stream: Exchange) -> None:
        if self.listener is stream:
            self.listener = None

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """While a client's request is being answered, the lease does not run."""
        self.open_connections += 1
        self.is_unused = False
        try:
            yield
        finally:
            self.open_connections -= 1
            self.last_seen = time.monotonic()

    def broke_off(self) -> None:
        """A client closed the connection on which it waited."""
        self.is_broken = True

    async def note_sign(self, request: HttpRequest) -> None:
        """After a connection broke off: one that is still open shows a client that lives.

        A request that was on its way when its client ended may be read later than that end; then its connection is closed.
        """
        if self.is_broken and not await request.breaks_within(_SIGN_OF_LIFE_S):
            self.is_broken = False

    def silent_s(self) -> float:
        return 0.0 if self.open_connections else time.monotonic() - self.last_seen

    async def end(self) -> None:
        """Answer what is in flight. The set is ended by the pool."""
        self.has_ended = True
        if self.listener is not None:
            self.listener.finish(None)
        for exchange in list(self.exchanges.values()):
            exchange.finish(encoded(refusal(exchange.request_id, SERVER_GONE, "the session has ended")), BAD_GATEWAY)
        await asyncio.sleep(0)
