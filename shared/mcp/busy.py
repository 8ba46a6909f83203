"""The HTTP client of one session with a tool server: obeys the server's load signals and limits idle streams.

A server that is too busy responds with 429, or with 503 and `Retry-After`: it did not accept the request. While a session is
being opened, this raises `ServerBusy`, and the caller decides who retries when. During an episode the request waits here and
is sent again; the call's time-out is paused meanwhile. 503 alone also comes from gateways whose server crashed during a call,
so it is a failure.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import httpx2
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER

from shared.http.retry_after import retry_after_s
from shared.mcp.http_bodies import SESSION_HEADER
from shared.processes.waits import Wait, waiting

log = logging.getLogger(__name__)

_BUSY, _LATER, _NO_STREAM = 429, 503, 405
_AS_IT_IS = {"stream": True, "follow_redirects": False}
MAX_BUSY_S = 300.0  # one request; with a longer wait the episode ends, and no failure is counted
_FIRST_WAIT_S = 1.0  # after a 429 without Retry-After; doubles with each
_MAX_WAIT_S = 30.0


class ServerBusy(httpx2.HTTPError):
    """The server accepts no requests for `wait_s`."""

    def __init__(self, status: int, wait_s: float) -> None:
        super().__init__(f"HTTP {status}: busy, retry after {wait_s:g} s")
        self.wait_s = wait_s


class ListeningStreams(Protocol):
    """Bounds the streams on which sessions of one server only listen."""

    def listen(self) -> bool: ...

    def stop_listening(self) -> None: ...


class Line:
    """State that the HTTP client and the session over it share. `streams`: bounds those that listen; None: nothing does."""

    def __init__(self, streams: ListeningStreams | None = None) -> None:
        self._streams = streams
        self.is_open = False  # the handshake is over, the tools are listed
        self._listens = False
        self._clocks: set[Callable[[float], None]] = set()

    @contextlib.contextmanager
    def clock(self, postpone: Callable[[float], None]) -> Iterator[None]:
        """`postpone(seconds)` is called when a request starts a wait of that length."""
        self._clocks.add(postpone)
        try:
            yield
        finally:
            self._clocks.discard(postpone)

    def postpone(self, seconds: float) -> None:
        for clock in self._clocks:
            clock(seconds)

    def listen(self) -> bool:
        self._listens = self._listens or self._streams is None or self._streams.listen()
        return self._listens

    def stop_listening(self) -> None:
        if self._listens:
            self._listens = False
            if self._streams is not None:
                self._streams.stop_listening()


class PatientClient(httpx2.AsyncClient):
    """Every request passes through `send`; the client's redirects and authentication are below it."""

    def __init__(
        self, line: Line, *, transport: httpx2.AsyncBaseTransport, auth: httpx2.Auth | None = None, **options: Any
    ) -> None:
        super().__init__(transport=transport, auth=auth, **options)
        self._line = line
        self._exchanges = transport
        self._authenticates = auth is not None
        self._posted: tuple[object, httpx2.Request] | None = None  # the last one, and what its fields were made of
        self._session: dict[str, str] = {}  # headers of the session that the server has opened, and not ended
        self.was_redirected = False

    @property
    def session_headers(self) -> Mapping[str, str]:
        """Of the session that the server has opened, and not ended; empty: of none."""
        return self._session

    async def post_message(self, url: httpx2.URL, content: bytes, headers: Mapping[str, str]) -> httpx2.Response:
        """A response whose body is not read yet; no redirect is followed. Raises ServerBusy."""
        return await self.send(self._post_request(url, content, headers), stream=True, follow_redirects=False)

    def _post_request(self, url: httpx2.URL, content: bytes, headers: Mapping[str, str]) -> httpx2.Request:
        """As `build_request` makes it, which takes three times as long: the fields are those of the last one."""
        made_of = (url, tuple(headers.items()), tuple(self.headers.raw))
        if self.cookies or self._posted is None or self._posted[0] != made_of:
            request = self.build_request("POST", url, content=content, headers=headers)
            self._posted = None if self.cookies else (made_of, request)
            return request
        last = self._posted[1]
        fields = [field for field in last.headers.raw if field[0].lower() != b"content-length"]
        return httpx2.Request("POST", url, headers=fields, content=content, extensions=dict(last.extensions))

    async def _sent(self, request: httpx2.Request, options: Mapping[str, Any]) -> httpx2.Response:
        """Past the client's own layers, where they have nothing to do: they take longer than the exchange."""
        if options != _AS_IT_IS or self._authenticates or request.url.userinfo or self.is_closed:
            return await super().send(request, **options)
        response = await self._exchanges.handle_async_request(request)
        response.request = request
        try:
            if "set-cookie" in response.headers:
                self.cookies.extract_cookies(response)
            for hook in self.event_hooks["response"]:
                await hook(response)
        except BaseException:  # raised again; a cancellation closes the response too
            await response.aclose()
            raise
        return response

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Raises ServerBusy."""
        if _only_listens(request) and not self._line.listen():
            return httpx2.Response(_NO_STREAM, request=request)
        waited_s, tries = 0.0, 0
        while True:
            response = await self._sent(request, options)
            wait_s = _asked_for_s(response, tries)
            if wait_s is None or request.method == "DELETE":
                self._note_session(request, response)
                return response
            await response.aclose()
            if not self._line.is_open or waited_s + wait_s > MAX_BUSY_S:
                raise ServerBusy(response.status_code, wait_s)
            self._line.postpone(wait_s)
            end = f"it has a place, for {MAX_BUSY_S:g} s at most"
            with waiting(Wait(f"the tool server at {request.url.host}", "it says that it is busy", end), inside=True):
                await asyncio.sleep(wait_s)
            waited_s, tries = waited_s + wait_s, tries + 1

    def _note_session(self, request: httpx2.Request, response: httpx2.Response) -> None:
        self.was_redirected = self.was_redirected or response.has_redirect_location
        if request.method == "DELETE" or response.status_code == httpx2.codes.NOT_FOUND:
            self._session = {}
        elif (number := response.headers.get(SESSION_HEADER)) is not None:
            self._session = {SESSION_HEADER: number}
        if self._session and (version := request.headers.get(MCP_PROTOCOL_VERSION_HEADER)) is not None:
            self._session[MCP_PROTOCOL_VERSION_HEADER] = version

    async def end_session(self, url: str, within_s: float) -> None:
        """Tell the server, also if the transport broke or the caller is cancelled.

        Otherwise it would keep the session, with its processes, until its lease ends.
        """
        if not self._session:
            return
        telling = asyncio.create_task(self._send_end(url, within_s))
        try:
            await asyncio.shield(telling)
        except asyncio.CancelledError:
            await asyncio.wait({telling})
            raise

    async def _send_end(self, url: str, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self.delete(url, headers=self._session)
        except httpx2.ConnectError:  # it is away, and its sessions with it
            return
        except (httpx2.HTTPError, OSError, TimeoutError) as exc:
            log.warning("a tool server could not be told that its session has ended: %s", type(exc).__name__)


def _only_listens(request: httpx2.Request) -> bool:
    """Whether this is the event stream of a session over streamable HTTP. (Over SSE, the stream carries the session itself.)"""
    return request.method == "GET" and SESSION_HEADER in request.headers


def _asked_for_s(response: httpx2.Response, tries: int) -> float | None:
    """The wait that the server requests; None: it accepted the request."""
    retry_s = retry_after_s(response.headers)
    if response.status_code == _BUSY and retry_s is None:
        return float(min(_MAX_WAIT_S, _FIRST_WAIT_S * 2.0**tries))
    return retry_s if response.status_code in (_BUSY, _LATER) else None
