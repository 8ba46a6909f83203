"""One request of a client, from its arrival to its answer: the events on the way, then the answer."""

import asyncio
import time
from collections import deque
from typing import Protocol

from sampler.mcp_docker.links.messages import RequestId

MAX_EVENTS = 10_000  # that a client has not read yet; the oldest are dropped
_OUTCOMES = {502: "server_gone", 504: "timed_out"}


class Answering(Protocol):
    """The link to the server that answers: `ServerLink`."""

    has_handshake: bool
    in_flight: "dict[RequestId, Exchange]"

    def forget(self, exchange: "Exchange") -> None: ...
    async def send(self, body: bytes) -> None: ...


class Exchange:
    """One request. `link`, `sent_id`: the server that answers it, and the id that it knows the request by.

    `token`: of its progress. `is_modern`: its client speaks 2026-07-28; `log_level`: of which logs that client asked for.
    """

    __slots__ = (
        "_wake",
        "began",
        "events",
        "final",
        "has_ended",
        "is_modern",
        "link",
        "log_level",
        "request_id",
        "sent_id",
        "status",
        "token",
        "wants_log",
    )

    def __init__(self, request_id: RequestId, token: RequestId | None = None) -> None:
        self.request_id, self.sent_id, self.token = request_id, request_id, token
        self.link: Answering | None = None
        self.events: deque[bytes] = deque(maxlen=MAX_EVENTS)
        self.final: bytes | None = None
        self.status = 200
        self.began = time.monotonic()
        self.wants_log = True
        self.log_level: str | None = None
        self.is_modern = False
        self.has_ended = False
        self._wake: asyncio.Future[None] | None = None

    @property
    def outcome(self) -> str:
        """For the counts: what became of it."""
        if self.final is None:
            return "cancelled"
        return _OUTCOMES.get(self.status, "answered")

    def push(self, body: bytes) -> None:
        """A notification or a request of the server, on the way to the answer."""
        self.events.append(body)
        self.wake()

    def finish(self, body: bytes | None, status: int = 200) -> None:
        """The answer; None: there is none, since the client cancelled the request."""
        if not self.has_ended:
            self.final, self.status, self.has_ended = body, status, True
            self.wake()

    async def news(self, within_s: float) -> bool:
        """Wait for an event or the end. False: neither came in time."""
        if self.events or self.has_ended:
            return True
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = loop.call_later(within_s, self.wake)
        try:
            await self._wake
        finally:
            timer.cancel()
            self._wake = None
        return bool(self.events) or self.has_ended

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
