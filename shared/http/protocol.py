"""One connection of `HttpServer`: who waits for whom, and for how long.

    connected ─▶ HEAD ─▶ BODY ─▶ ANSWER ─▶ IDLE ─▶ HEAD …
                           └─ answered before its end ─▶ UNREAD

In ANSWER the client waits for the server, so nothing is overdue but a response that the client does not take. IDLE has
uvicorn's time limit of idle connections. A connection is closed if it is overdue at two looks in succession: what has arrived
while the event loop was busy is read between the two.
"""

import asyncio
from enum import Enum
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from shared.http.connections import ConnectionLimits, ConnectionPlace, Connections
from shared.http.gathering import GatheringTransport

FULL_RETRY_AFTER_S = 2
_TOO_SLOW = b"the request did not arrive in time; send it again\n"
_FULL = b"all connections of this server are in use; try again later\n"


class Phase(Enum):
    IDLE = "idle between requests"
    HEAD = "a request's head arrives"
    BODY = "a request's body arrives"
    UNREAD = "the rest of a body whose request is answered arrives"
    ANSWER = "a request is answered"


class BoundedProtocol(H11Protocol):
    def __init__(self, clients: Connections, limits: ConnectionLimits, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._clients, self._limits = clients, limits
        self._phase = Phase.HEAD
        self._deadline = self.loop.time() + limits.head_s
        self._was_overdue = False
        self._unsent, self._unsent_since = 0, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(cast(asyncio.Transport, GatheringTransport(transport)))
        place = self._clients.admit(self, self.client[0] if self.client else "")
        if place is ConnectionPlace.NONE:
            self.hang_up()
        elif place is ConnectionPlace.SPARE:
            self.app = _Spare(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.closed(self)
        super().connection_lost(exc)

    def hang_up(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(0)

    def _note(self, num_bytes: int) -> None:
        """`num_bytes`: that have just arrived."""
        state = self.conn.their_state
        if state is h11.IDLE:
            has_begun = num_bytes or self.conn.trailing_data[0]
            self._wait_in(Phase.HEAD if has_begun else Phase.IDLE, self._limits.head_s)
        elif state is h11.SEND_BODY and self.conn.our_state in (h11.DONE, h11.MUST_CLOSE):
            self._wait_in(Phase.UNREAD, self._limits.unread_s)
        elif state is h11.SEND_BODY:
            self._wait_in(Phase.BODY, self._limits.body_s)
            most = self.loop.time() + self._limits.body_s
            self._deadline = min(most, self._deadline + num_bytes / self._limits.body_bytes_per_s)
        elif self._phase is not Phase.ANSWER:
            self._phase = Phase.ANSWER
            self._clients.serves(self)

    def _wait_in(self, phase: Phase, limit_s: float) -> None:
        """Nothing, if it waits so already."""
        if phase is self._phase:
            return
        if self._phase in (Phase.ANSWER, Phase.BODY):
            self._clients.waits(self)
        self._phase = phase
        self._deadline = self.loop.time() + limit_s

    def close_if_overdue(self, now: float) -> None:
        if not self._is_overdue(now) and not self._takes_nothing(now):
            self._was_overdue = False
        elif not self._was_overdue:
            self._was_overdue = True
        elif self._phase is Phase.HEAD and self.conn.trailing_data[0]:
            self._refuse()
        elif self._phase is Phase.BODY and not self.cycle.response_started:
            self.cycle.disconnected = True  # to the application the client has left
            self.cycle.message_event.set()
            self._refuse()
        else:
            self.hang_up()

    def _is_overdue(self, now: float) -> bool:
        if self._phase in (Phase.IDLE, Phase.ANSWER):
            return False
        if self._phase is Phase.BODY and (self.flow.read_paused or self.cycle.waiting_for_100_continue):
            self._deadline = now + self._limits.body_s  # the application has not read what is there
        return now > self._deadline

    def _takes_nothing(self, now: float) -> bool:
        unsent = cast(GatheringTransport, self.transport).get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return now > self._unsent_since + self._limits.send_s

    def _refuse(self) -> None:
        headers = [("content-type", "text/plain"), ("content-length", str(len(_TOO_SLOW))), ("connection", "close")]
        for event in (h11.Response(status_code=408, headers=headers), h11.Data(data=_TOO_SLOW), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Spare:
    """An application on a connection beyond the bound."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].rstrip("/") == "/health":
            await self._app(scope, receive, send)
            return
        headers = [
            (b"content-type", b"text/plain"),
            (b"content-length", str(len(_FULL)).encode()),
            (b"retry-after", str(FULL_RETRY_AFTER_S).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": _FULL})
