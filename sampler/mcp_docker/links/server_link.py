"""The gateway's side of one tool server of one session: the handshake, its own questions, and clients' requests in flight."""

import asyncio
import itertools
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import LATEST_HANDSHAKE_VERSION

from sampler.mcp_docker.links.channel import ServerChannel
from sampler.mcp_docker.links.errors import Refused, ServerAway, ServerGone, StartFailed
from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.links.messages import (
    SERVER_GONE,
    Message,
    RequestId,
    answer,
    encoded,
    is_made_up,
    notification,
    refusal,
    request,
)

log = logging.getLogger(__name__)

BAD_GATEWAY = 502
MAX_PAGES = 100
_OWN = "tandem-gateway-"  # ids of the gateway's own requests
CLIENT_INFO = {"name": "tandem-mcp-docker", "version": "1"}


class LinkOwner(Protocol):
    """The session that uses a set: what its servers send on their own."""

    def on_request(self, link: "ServerLink", message: Message) -> None: ...
    def on_notification(self, link: "ServerLink", message: Message, body: bytes) -> None: ...


# 26 methods: one server's requests in flight, which all ends must answer
class ServerLink:
    """`name`: the server's in the mcpServers JSON. `told`: its answer to the handshake.

    `ModernLink` speaks the revision without a handshake.
    """

    has_handshake = True

    def __init__(self, name: str, channel: ServerChannel) -> None:
        self.name = name
        self.told: Message = {}
        self.owner: LinkOwner | None = None
        self.in_flight: dict[RequestId, Exchange] = {}
        self.gone = ""  # why the server ended
        self.num_list_changes = 0
        self._channel = channel
        self._pending: dict[RequestId, asyncio.Future[Message]] = {}
        self._numbers = itertools.count()

    @property
    def capabilities(self) -> Message:
        announced = self.told.get("capabilities")
        return announced if isinstance(announced, dict) else {}

    async def open(self, capabilities: Message) -> None:
        """Start the server, and tell it a client's capabilities. Raises StartFailed; close it then."""
        try:
            await self._channel.open(self._on_message, self._on_end)
            await self._greet(capabilities)
        except (StartFailed, ServerGone, Refused) as exc:
            raise StartFailed(self._named(str(exc))) from exc

    async def _greet(self, capabilities: Message) -> None:
        """The handshake. Raises ServerGone and Refused."""
        params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": capabilities, "clientInfo": CLIENT_INFO}
        self.told = await self.ask("initialize", params)
        await self._channel.send(encoded(notification("notifications/initialized")))

    async def close(self) -> None:
        await self._channel.close()

    def new_id(self) -> str:
        return f"{_OWN}{next(self._numbers)}"

    async def ask(self, method: str, params: Message) -> Message:
        """A request of the gateway itself. Raises ServerGone, ServerAway and Refused."""
        number = self.new_id()
        try:
            message = await (await self.begin(number, method, params))
        except asyncio.CancelledError:
            if method != "initialize":  # which no client may cancel
                self._reply(notification("notifications/cancelled", {"requestId": number}))
            raise
        finally:
            self.forget_own(number)
        result = message.get("result")
        if isinstance(result, dict):
            return result
        error = message.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(error, dict) and (why := self._failure(error)):
            raise ServerAway(why, code)
        raise Refused(code if isinstance(code, int) else METHOD_NOT_FOUND, f"{method} is answered with {error!r:.300}")

    async def begin(self, number: RequestId, method: str, params: Message) -> "asyncio.Future[Message]":
        """Send a request of the gateway itself; the answer comes later, until `forget_own`. Raises ServerGone."""
        pending: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[number] = pending
        await self.send_request(request(number, method, params))
        return pending

    def forget_own(self, number: RequestId) -> None:
        self._pending.pop(number, None)

    async def all_pages(self, method: str, key: str) -> list[Message]:
        """The entries of all pages of a list. Raises ServerGone and Refused."""
        entries: list[Message] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self.ask(method, params)
            listed = page.get(key)
            entries += [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                return entries
            params = {"cursor": cursor}
        raise Refused(SERVER_GONE, f"tool server {self.name!r}: {method} has more than {MAX_PAGES} pages")

    async def send_request(self, message: Message, body: bytes | None = None) -> None:
        """`body`: the message as bytes, if there are some. Raises ServerGone."""
        await self.send(encoded(message) if body is None else body)

    async def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Raises ServerGone."""
        if self.gone:
            raise ServerGone(f"tool server {self.name!r}: {self.gone}")
        try:
            await self._channel.send(body, headers)
        except ServerGone as exc:
            raise ServerGone(f"tool server {self.name!r}: {self.gone or exc}") from exc

    async def forward(self, exchange: Exchange, message: Message, body: bytes | None = None) -> None:
        """Send a client's request; its answer ends `exchange`. Raises ServerGone."""
        exchange.link = self
        self.in_flight[exchange.sent_id] = exchange
        try:
            await self.send_request(message, body)
        except BaseException:  # cancelled too: a request that was not sent has no answer to wait for
            self.in_flight.pop(exchange.sent_id, None)
            raise

    def forget(self, exchange: Exchange) -> None:
        self.in_flight.pop(exchange.sent_id, None)

    def _on_message(self, message: Message, body: bytes) -> None:
        if "method" not in message:
            self._on_answer(message, body)
        elif "id" not in message:
            self._on_notification(message, body)
        else:
            self._on_request(message)

    def _on_notification(self, message: Message, body: bytes) -> None:
        self.num_list_changes += message["method"].endswith("/list_changed")
        if self.owner is not None:
            self.owner.on_notification(self, message, body)

    def _on_request(self, message: Message) -> None:
        if message["method"] == "ping":
            self._reply(answer(message["id"], {}))
        elif self.owner is not None:
            self.owner.on_request(self, message)
        else:
            self._reply(refusal(message["id"], METHOD_NOT_FOUND, "no client is connected yet"))

    def _on_answer(self, message: Message, body: bytes) -> None:
        number = message["id"]
        pending = self._pending.get(number)
        if pending is not None:
            if not pending.done():
                pending.set_result(message)
        elif (exchange := self.in_flight.pop(number, None)) is not None:
            self._on_final(exchange, message, body)

    def _on_final(self, exchange: Exchange, message: Message, body: bytes) -> None:
        """The answer to a client's request."""
        number, error = message["id"], message.get("error")
        if isinstance(error, dict) and (why := self._failure(error)):
            exchange.finish(encoded(refusal(exchange.request_id, SERVER_GONE, why)), BAD_GATEWAY)
            return
        if exchange.request_id is not number and exchange.request_id != number:
            body = encoded(message | {"id": exchange.request_id})
        exchange.finish(body)

    def _failure(self, error: Message) -> str:
        """Of infrastructure; empty: the error is the server's answer."""
        is_failure = error.get("code") == SERVER_GONE or (self._channel.has_headers and is_made_up(error))
        return self._named(str(error.get("message"))[:300]) if is_failure else ""

    def _named(self, why: str) -> str:
        prefix = f"tool server {self.name!r}: "
        return prefix + why.removeprefix(prefix)

    def _reply(self, message: Message) -> None:
        """Send it in the background."""
        task = asyncio.ensure_future(self._send_quietly(encoded(message)))
        _replies.add(task)
        task.add_done_callback(_replies.discard)

    async def _send_quietly(self, body: bytes) -> None:
        try:
            await self.send(body)
        except ServerGone as exc:
            log.debug("%s", exc)

    def reply(self, message: Message) -> None:
        """Answer a request of the server: the gateway's refusal."""
        self._reply(message)

    async def take_answer(self, message: Message) -> None:
        """The client's answer to a request of the server. Raises ServerGone."""
        await self.send(encoded(message))

    def _on_end(self, why: str) -> None:
        self.gone = self.gone or why
        reason = f"tool server {self.name!r}: {why}; the state of this session with it is lost"
        for pending in list(self._pending.values()):
            if not pending.done():
                pending.set_exception(ServerGone(self._named(why)))
        ended, self.in_flight = list(self.in_flight.values()), {}
        for exchange in ended:
            exchange.finish(encoded(refusal(exchange.request_id, SERVER_GONE, reason)), BAD_GATEWAY)


_replies: set["asyncio.Task[None]"] = set()  # the loop holds tasks weakly
