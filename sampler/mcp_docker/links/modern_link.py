"""The gateway's side of a tool server that speaks 2026-07-28: no handshake, and an envelope in every request.

The envelope (`_meta`) has the revision, the gateway's name and the client's capabilities. Over HTTP headers repeat a part
of it. What the server answers goes to clients of 2026-07-28 as it is; `InputRounds` translates it for the others, and
`ServerChanges` brings the changes of lists and resources.
"""

import asyncio
import contextlib
import logging
from typing import Any

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from mcp_types.version import LATEST_MODERN_VERSION

from sampler.mcp_docker.links.channel import ServerChannel
from sampler.mcp_docker.links.errors import Refused, ServerAway, ServerGone
from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.links.input_rounds import InputRounds, in_handshake_words
from sampler.mcp_docker.links.messages import (
    SERVER_GONE,
    Message,
    answer,
    asks_for_input,
    encoded,
    refusal,
)
from sampler.mcp_docker.links.server_changes import ServerChanges
from sampler.mcp_docker.links.server_link import BAD_GATEWAY, CLIENT_INFO, ServerLink
from shared.mcp.revision import EPISODE_KEY

log = logging.getLogger(__name__)

# Not about what the client asked, but how the gateway said it: another revision is served since a restart, say.
_OF_THE_GATEWAY = (PARSE_ERROR, INVALID_REQUEST, HEADER_MISMATCH, UNSUPPORTED_PROTOCOL_VERSION)
_SUBSCRIBING = ("resources/subscribe", "resources/unsubscribe")


# 21 methods: one revision of the protocol: a method for each message of it
class ModernLink(ServerLink):
    """`episode`: by which the server may know the requests of this set."""

    has_handshake = False

    def __init__(self, name: str, channel: ServerChannel, episode: str) -> None:
        super().__init__(name, channel)
        self._envelope: Message = {EPISODE_KEY: episode}
        self._log_level: str | None = None  # that a client of the handshake's revisions has set
        self._header_maps: dict[str, dict[tuple[str, ...], str]] = {}  # by tool: its arguments that headers repeat
        self._rounds = InputRounds(self)
        self._changes = ServerChanges(self)
        self._calls: dict[Exchange, Message] = {}  # that may be repeated: as they were sent last
        self._repeating: dict[Exchange, asyncio.Task[None]] = {}

    async def _greet(self, capabilities: Message) -> None:
        self._envelope |= {
            PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
            CLIENT_INFO_META_KEY: CLIENT_INFO,
            CLIENT_CAPABILITIES_META_KEY: capabilities,
        }
        discovery = await self.ask("server/discover", {})
        versions = discovery.get("supportedVersions")
        if not isinstance(versions, list) or LATEST_MODERN_VERSION not in versions:
            why = f"it serves the revisions {versions!r:.200}; its entry says {LATEST_MODERN_VERSION}"
            raise Refused(UNSUPPORTED_PROTOCOL_VERSION, why)
        self.told = discovery
        await self._changes.open()
        if self.gone:
            raise ServerGone(self.gone)

    async def close(self) -> None:
        self._stop_own_work()
        await super().close()

    def _stop_own_work(self) -> None:
        self._changes.close()
        self._rounds.close()
        for task in self._repeating.values():
            task.cancel()

    # ------------------------------------------------------------------ to the server

    async def ask(self, method: str, params: Message) -> Message:
        if method == "logging/setLevel":  # each request says it
            level = params.get("level")
            self._log_level = level if isinstance(level, str) else None
            return {}
        if method in _SUBSCRIBING:
            await self._changes.subscribe(str(params.get("uri")), method == _SUBSCRIBING[0])
            return {}
        try:
            result = await super().ask(method, params)
        except ServerAway as exc:
            if method != "tools/call" or not self._has_wrong_headers(exc.code):
                raise
            result = await super().ask(method, params)
        if method == "tools/call" and asks_for_input(result):
            raise Refused(METHOD_NOT_FOUND, "the tool asks its client for input, which this client cannot be asked for")
        return result

    async def all_pages(self, method: str, key: str) -> list[Message]:
        entries = await super().all_pages(method, key)
        if method == "tools/list" and self._channel.has_headers:
            self._header_maps = {str(tool.get("name")): _header_map(tool.get("inputSchema")) for tool in entries}
        return entries

    async def forward(self, exchange: Exchange, message: Message, body: bytes | None = None) -> None:
        if message["method"] in _SUBSCRIBING:  # here a part of `subscriptions/listen`
            await self.ask(message["method"], message.get("params", {}))
            exchange.finish(encoded(answer(exchange.request_id, {})))
            return
        if not exchange.is_modern:
            self._rounds.begin(exchange, message)
        if message["method"] == "tools/call" and self._channel.has_headers:
            self._calls[exchange] = message
        try:
            await super().forward(exchange, message, body)
        except BaseException:  # cancelled too: a call that was not sent is never answered, which would end its entry
            self._calls.pop(exchange, None)
            raise

    async def send_request(self, message: Message, body: bytes | None = None) -> None:
        """With the envelope, and so never as the bytes that came."""
        params = message.get("params", {})
        meta = params.get("_meta")
        own_meta = (dict(meta) if isinstance(meta, dict) else {}) | self._envelope
        exchange = self.in_flight.get(message["id"])
        if exchange is not None and exchange in self._calls:
            self._calls[exchange] = message
        level = exchange.log_level if exchange is not None and exchange.is_modern else self._log_level
        own_meta.pop(LOG_LEVEL_META_KEY, None)
        if level is not None:
            own_meta[LOG_LEVEL_META_KEY] = level
        sent = message | {"params": params | {"_meta": own_meta}}
        headers = await self._headers(message["method"], params) if self._channel.has_headers else None
        await self.send(encoded(sent), headers)

    async def _headers(self, method: str, params: Message) -> dict[str, str]:
        headers = {MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION, MCP_METHOD_HEADER: method}
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
        if method == "tools/call" and isinstance(name, str):
            if name not in self._header_maps:
                with contextlib.suppress(Refused):
                    await self.all_pages("tools/list", "tools")
            arguments = params.get("arguments")
            given = arguments if isinstance(arguments, dict) else {}
            headers |= mcp_param_headers(self._header_maps.get(name, {}), given)
        return headers

    def forget(self, exchange: Exchange) -> None:
        super().forget(exchange)
        self._rounds.end(exchange)
        self._calls.pop(exchange, None)
        task = self._repeating.get(exchange)
        if task is not None:
            task.cancel()

    # ------------------------------------------------------------------ from the server

    def _on_final(self, exchange: Exchange, message: Message, body: bytes) -> None:
        error, call = message.get("error"), self._calls.pop(exchange, None)
        if isinstance(error, dict) and self._has_wrong_headers(error.get("code")) and call is not None:
            self._repeat(exchange, call)
        elif isinstance(error, dict) and self._failure(error):
            self._rounds.end(exchange)
            super()._on_final(exchange, message, body)
        elif exchange.is_modern:
            super()._on_final(exchange, message, body)
        elif asks_for_input(result := message.get("result")):
            if call is not None:
                self._calls[exchange] = call
            self._rounds.go_on(exchange, result)
        else:
            self._rounds.end(exchange)
            exchange.finish(encoded(in_handshake_words(message | {"id": exchange.request_id})))

    def _has_wrong_headers(self, code: object) -> bool:
        """They were made from a list of tools that has changed. Such a call is refused before it is executed."""
        if code != HEADER_MISMATCH or not self._channel.has_headers:
            return False
        self._header_maps = {}
        return True

    def _repeat(self, exchange: Exchange, call: Message) -> None:
        """Once, with the headers of a new list."""
        log.info("tool server %r refused headers of an older list of its tools: the call is repeated", self.name)
        number = exchange.sent_id = self.new_id()  # an id is used once
        if exchange.is_modern and exchange.token is not None:  # its progress is found by the id
            params = call["params"]
            call = call | {"params": params | {"_meta": params["_meta"] | {"progressToken": number}}}
        self.in_flight[number] = exchange
        task = self._repeating[exchange] = asyncio.ensure_future(self._send_again(exchange, call | {"id": number}))
        task.add_done_callback(lambda _: self._repeating.pop(exchange, None))

    async def _send_again(self, exchange: Exchange, call: Message) -> None:
        try:
            await self.send_request(call)
        except ServerGone as exc:
            super().forget(exchange)
            self._rounds.end(exchange)
            exchange.finish(encoded(refusal(exchange.request_id, SERVER_GONE, str(exc))), BAD_GATEWAY)

    def _failure(self, error: Message) -> str:
        if error.get("code") not in _OF_THE_GATEWAY:
            return super()._failure(error)
        why = str(error.get("message"))[:300]
        return f"tool server {self.name!r} does not take {LATEST_MODERN_VERSION} as the gateway speaks it: {why}"

    def _on_notification(self, message: Message, body: bytes) -> None:
        notice = self._changes.translated(message)
        if notice is None:
            return
        if notice["method"] == "notifications/tools/list_changed":
            self._header_maps = {}
        super()._on_notification(notice, body if notice is message else encoded(notice))

    def notify(self, message: Message) -> None:
        """What the server would have told, had the gateway listened."""
        super()._on_notification(message, encoded(message))

    def _on_request(self, message: Message) -> None:
        why = f"{LATEST_MODERN_VERSION} has no requests of servers: a result asks for input"
        self._reply(refusal(message["id"], METHOD_NOT_FOUND, why))

    def _on_end(self, why: str) -> None:
        super()._on_end(why)
        self._stop_own_work()

    # ------------------------------------------------------------------ from the client, to what `InputRounds` asked

    def reply(self, message: Message) -> None:
        self._rounds.answered(message)

    async def take_answer(self, message: Message) -> None:
        self._rounds.answered(message)


def _header_map(schema: Any) -> dict[tuple[str, ...], str]:
    return x_mcp_header_map(schema) if find_invalid_x_mcp_header(schema) is None else {}
