"""How the answer to one request reaches its client: as JSON, or as an event stream once there is something to tell before it."""

import asyncio
import math

from sampler.mcp_docker.links.exchange import Exchange
from sampler.mcp_docker.sessions.gateway_session import GatewaySession
from shared.http.asgi import Headers, HttpRequest

QUIET_S = 1.0  # after which the connection of a request is watched
BEAT_S = 15.0  # after which a silent answer becomes an event stream; then the interval of its comments


class Delivery:
    """Writes an exchange to its client. `call_s=None`: a listening stream, which has no answer and no end of its own."""

    def __init__(
        self,
        request: HttpRequest,
        session: GatewaySession,
        exchange: Exchange,
        call_s: float | None,
        headers: Headers | None = None,
    ) -> None:
        self._request, self._session, self._exchange = request, session, exchange
        self._call_s, self._headers = call_s, headers or []
        self._ends_at = math.inf if call_s is None else asyncio.get_running_loop().time() + call_s

    async def run(self) -> None:
        """Most calls end before the connection has to be watched, which takes a task."""
        exchange = self._exchange
        if self._call_s is not None and await exchange.news(min(QUIET_S, self._call_s)) and not exchange.events:
            await self._plain()
            return
        watch = asyncio.ensure_future(self._request.until_broken())
        watch.add_done_callback(lambda _: exchange.wake())
        try:
            await self._slowly()
        finally:
            watch.cancel()
            if self._request.is_broken:
                self._session.broke_off()
                await self._session.cancel(exchange, "the client's connection broke off")

    async def _slowly(self) -> None:
        exchange = self._exchange
        if self._call_s is not None and not exchange.events:
            await exchange.news(min(BEAT_S, self._remaining_s()))
            await self._bound()
        if not accepts_events(self._request):
            await self._until_answered()
        if exchange.has_ended and not exchange.events and self._call_s is not None:
            await self._plain()
        else:
            await self._events()

    async def _until_answered(self) -> None:
        """For a client that reads no event streams: the answer alone."""
        exchange = self._exchange
        while not exchange.has_ended and not self._request.is_broken:
            exchange.events.clear()
            await exchange.news(self._remaining_s())
            await self._bound()
        exchange.events.clear()
        exchange.finish(None)  # broken off

    async def _events(self) -> None:
        exchange, request = self._exchange, self._request
        await request.begin_events(self._headers)
        while not request.is_broken:
            while exchange.events:
                await request.event(exchange.events.popleft())
            if exchange.has_ended:
                break
            if not await exchange.news(min(BEAT_S, self._remaining_s())) and not request.is_broken:
                await request.comment()
            await self._bound()
        if exchange.final is not None:
            await request.event(self._answer(exchange.final))
        await request.end_events()

    async def _plain(self) -> None:
        if self._exchange.final is None:  # cancelled: there is no answer
            await self._request.answer(202, headers=self._headers)
            return
        body = self._answer(self._exchange.final)
        await self._request.answer(self._status(body), body, self._headers)

    def _answer(self, body: bytes) -> bytes:
        """The server's answer in the words of the client's revision."""
        return body

    def _status(self, body: bytes) -> int:
        return self._exchange.status

    def _remaining_s(self) -> float:
        return max(0.0, min(BEAT_S, self._ends_at - asyncio.get_running_loop().time()))

    async def _bound(self) -> None:
        if self._call_s is not None and self._remaining_s() == 0 and not self._exchange.has_ended:
            await self._session.time_out(self._exchange, self._call_s)


def accepts_events(request: HttpRequest) -> bool:
    accepted = request.headers.get("accept", "")
    return "text/event-stream" in accepted or "*/*" in accepted or "text/*" in accepted
