"""Changes of lists and resources that a server of 2026-07-28 tells: on a `subscriptions/listen` stream, which this keeps open.

Other wishes need another stream: the new one is opened, then the old one is ended, so that no change is missed. A stream
that ends by itself is opened again, and the client is told that everything may have changed meanwhile. A server that answers
that it does not know such streams is asked only for what a client wants.
"""

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any, Protocol

from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import METHOD_NOT_FOUND

from sampler.mcp_docker.links.errors import Refused, ServerGone
from sampler.mcp_docker.links.messages import Message, RequestId, encoded, is_id, notification

log = logging.getLogger(__name__)

LISTEN_S = 10.0  # until a server says that it has subscribed
_FIRST_REST_S, _MAX_REST_S = 1.0, 30.0  # before an ended stream is opened again
_ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
_UPDATED = "notifications/resources/updated"
LIST_FLAGS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}


class ListeningLink(Protocol):
    """`ModernLink`, as far as listening needs it."""

    name: str
    gone: str

    @property
    def capabilities(self) -> Message: ...
    def new_id(self) -> str: ...
    async def begin(self, number: RequestId, method: str, params: Message) -> "asyncio.Future[Message]": ...
    def forget_own(self, number: RequestId) -> None: ...
    async def send(self, body: bytes) -> None: ...
    def notify(self, message: Message) -> None: ...


class ServerChanges:
    """Of one server."""

    def __init__(self, link: ListeningLink) -> None:
        self._link = link
        self._flags: dict[str, bool] = {}
        self._uris: list[str] = []
        self._current: str | None = None
        self._streams: dict[RequestId, asyncio.Future[Message]] = {}  # until each ends: what the server agreed to tell
        self._lock = asyncio.Lock()
        self._reopening: asyncio.Task[None] | None = None
        self._rest_s, self._opened_at = _FIRST_REST_S, 0.0
        self._is_closed, self._is_unknown = False, False

    async def open(self) -> None:
        """Listen for the lists that the server announces changes of. Raises ServerGone."""
        able = self._link.capabilities
        lists = {method.split("/")[1]: flag for method, flag in LIST_FLAGS.items()}
        self._flags = {flag: True for name, flag in lists.items() if _says(able.get(name), "listChanged")}
        if self._flags:
            try:
                async with self._lock:
                    await self._listen()
            except Refused as exc:
                self._lost(exc)

    async def subscribe(self, uri: str, subscribed: bool) -> None:
        """Listen, or listen no more, for the changes of a resource. Raises Refused and ServerGone."""
        if not _says(self._link.capabilities.get("resources"), "subscribe"):
            raise Refused(METHOD_NOT_FOUND, f"tool server {self._link.name!r} tells no changes of resources")
        async with self._lock:
            if (uri in self._uris) == subscribed:
                return
            before = self._uris
            self._uris = [*before, uri] if subscribed else [known for known in before if known != uri]
            try:
                acknowledged = await self._listen()
            except BaseException:  # cancelled too: what the server was not asked for is not listened for
                self._uris = before
                raise
            agreed = acknowledged.get("resourceSubscriptions")
            if subscribed and not (isinstance(agreed, list) and uri in agreed):
                self._uris = before
                raise Refused(METHOD_NOT_FOUND, f"tool server {self._link.name!r} tells no changes of {uri[:200]}")

    def translated(self, message: Message) -> Message | None:
        """A notification as the client may have it; None: it is about a stream."""
        method, params = message["method"], message.get("params", {})
        meta = params.get("_meta")
        number = meta.get(SUBSCRIPTION_ID_META_KEY) if isinstance(meta, dict) else None
        if method == _ACKNOWLEDGED:
            self._acknowledge(number, params.get("notifications"))
            return None
        if method == "notifications/cancelled":
            self._ended(params.get("requestId"), None)
            return None
        if number is None or (method not in LIST_FLAGS and method != _UPDATED):
            return message
        if not is_id(number) or number not in self._streams:
            return None
        own_params = {key: value for key, value in params.items() if key != "_meta"}
        return notification(method, own_params or None)

    def close(self) -> None:
        self._is_closed = True
        if self._reopening is not None:
            self._reopening.cancel()

    async def _listen(self) -> Message:
        """A stream for what is wanted now; the one before is ended. Raises Refused and ServerGone."""
        before = self._current
        acknowledged: Message = {}
        if self._flags or self._uris:
            number = self._link.new_id()
            acknowledged = await self._opened(number)
            self._current, self._opened_at = number, time.monotonic()
        else:
            self._current = None
        if before is not None:
            await self._drop(before)
        if self._current is not None and self._current not in self._streams:  # it ended as soon as it was open
            self._lost("it ended the stream")
        return acknowledged

    async def _opened(self, number: str) -> Message:
        self._is_unknown = False
        agreed = self._streams[number] = asyncio.get_running_loop().create_future()
        requested: Message = dict(self._flags) | ({"resourceSubscriptions": self._uris} if self._uris else {})
        try:
            ended = await self._link.begin(number, "subscriptions/listen", {"notifications": requested})
            ended.add_done_callback(partial(self._ended, number))
            async with asyncio.timeout(LISTEN_S):
                acknowledged: Message = await agreed
                return acknowledged
        except BaseException as exc:  # cancelled too: a stream without a reader must end at the server
            await self._drop(number)
            if isinstance(exc, TimeoutError):
                raise Refused(METHOD_NOT_FOUND, f"no answer to subscriptions/listen within {LISTEN_S:g} s") from exc
            raise

    async def _drop(self, number: str) -> None:
        self._streams.pop(number, None)
        self._link.forget_own(number)
        with contextlib.suppress(ServerGone):
            await self._link.send(encoded(notification("notifications/cancelled", {"requestId": number})))

    def _acknowledge(self, number: Any, content: Any) -> None:
        agreed = self._streams.get(number) if is_id(number) else None
        if agreed is not None and not agreed.done():
            agreed.set_result(content if isinstance(content, dict) else {})

    def _ended(self, number: Any, ended: "asyncio.Future[Message] | None") -> None:
        """By the server's answer, by its notification, or with the server."""
        why: Any = "it ended the stream"
        if ended is not None and not ended.cancelled():
            gone = ended.exception()
            why = gone or ended.result().get("error") or why
            self._is_unknown = isinstance(why, dict) and why.get("code") == METHOD_NOT_FOUND
        agreed = self._streams.pop(number, None) if is_id(number) else None
        if agreed is None:
            return
        self._link.forget_own(number)
        if not agreed.done():
            agreed.set_exception(Refused(METHOD_NOT_FOUND, f"subscriptions/listen is answered with {why!s:.300}"))
        elif number == self._current:
            self._lost(why)

    def _lost(self, why: Any) -> None:
        """The stream has ended: open it again, the later the sooner it ended."""
        self._current = None
        if self._is_closed or self._link.gone:
            return
        if self._is_unknown:
            log.warning("tool server %r: its changes are not heard, it does not know listening", self._link.name)
            return
        log.warning("tool server %r: its changes are not heard for a moment: %.300s", self._link.name, why)
        if time.monotonic() - self._opened_at > _MAX_REST_S:
            self._rest_s = _FIRST_REST_S
        if self._reopening is None or self._reopening.done():
            self._reopening = asyncio.ensure_future(self._reopen())

    @property
    def _is_missing(self) -> bool:
        is_needed = bool(self._flags or self._uris) and not (self._link.gone or self._is_unknown)
        return self._current is None and is_needed

    async def _reopen(self) -> None:
        while self._is_missing:
            await asyncio.sleep(self._rest_s)
            self._rest_s = min(_MAX_REST_S, 2 * self._rest_s)
            with contextlib.suppress(Refused, ServerGone):
                async with self._lock:
                    if self._is_missing:
                        await self._listen()
        if self._link.gone or self._current is None:
            return
        for method, flag in LIST_FLAGS.items():
            if flag in self._flags:
                self._link.notify(notification(method))
        for uri in self._uris:
            self._link.notify(notification(_UPDATED, {"uri": uri}))


def _says(capability: Any, what: str) -> bool:
    return isinstance(capability, dict) and capability.get(what) is True
