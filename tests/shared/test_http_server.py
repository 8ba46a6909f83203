"""The HTTP server of the gateways: what a client may send before a request is whole, and how responses are sent."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shared.http import server as http_server
from shared.http.gathering import GatheringTransport
from shared.http.server import HttpServer

MOST_BYTES = 8 * 1024 * 1024  # a socket's buffers hold some more than the bound
BODY = b"b" * 3_000_000


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(echo, log_level="critical")
    serving = asyncio.create_task(server.serve([listening]))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


async def test_a_request_for_a_web_socket_is_answered_as_any_other() -> None:
    """uvicorn would hand the connection to another protocol, which a gathering transport cannot."""
    asked = b"GET / HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    asked += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    async with connected() as (reader, writer):
        writer.write(asked)
        async with asyncio.timeout(60):
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "line"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n", b"X: " + b"a" * 60_000 + b"\r\n"),
        (b"GET / HTTP/1.1\r\nHost: here\r\n", b"X: a\r\n"),
        (b"GET / HTTP/1.1\r\nHost: ", b"a" * 60_000),
        (b"GET /", b"a" * 60_000),
        (b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"X: " + b"a" * 60_000 + b"\r\n"),
    ],
    ids=["headers", "short headers", "a header", "the path", "trailers"],
)  # fmt: skip
async def test_a_request_whose_head_or_trailer_does_not_end_is_refused(begin: bytes, line: bytes) -> None:
    async with connected() as (_, writer):
        writer.write(begin)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < MOST_BYTES and not writer.is_closing():
                writer.write(line * max(1, 60_000 // len(line)))
                await writer.drain()
                sent += 60_000
        assert sent < MOST_BYTES


async def test_large_bodies_and_many_requests_of_a_connection_are_taken() -> None:
    head = b"POST / HTTP/1.1\r\nHost: here\r\nX: %s\r\n" % (b"a" * (32_000))
    chunk = b"%x\r\n%s\r\n" % (len(BODY), BODY)
    async with connected() as (reader, writer):
        for request in (
            head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
            head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n",
        ) * 3:
            for begin in range(0, len(request), 500_000):
                writer.write(request[begin : begin + 500_000])
                await writer.drain()
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(BODY)) == BODY


async def test_a_response_is_sent_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece wakes the client. Requests that are sent at once are answered in their order."""
    async with connected() as (reader, writer):
        await asyncio.sleep(0.1)  # accepted
        for body in (b"a", b"bc"):
            writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            assert (await reader.read(10_000)).endswith(b"\r\n\r\n" + body)
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\na" * 2)
        for _ in range(2):
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1) == b"a"


class LeftConnection(asyncio.Transport):
    """As uvloop's: nothing can be written to it."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        raise RuntimeError("the handler is closed")


async def test_a_client_that_left_before_its_response_was_sent_is_no_error() -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context))
    sending = GatheringTransport(LeftConnection())
    sending.write(b"too late")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failed == []


async def test_a_client_that_offers_another_protocol_is_answered_in_this_one() -> None:
    """As Java's client does with its first request."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    async with connected() as (reader, writer):
        for added in (offer, b"", offer):
            request = b"POST / HTTP/1.1\r\nHost: here\r\n" + added + b"Content-Length: 3\r\n\r\nabc"
            for step in (len(request), 1):
                for begin in range(0, len(request), step):
                    writer.write(request[begin : begin + step])
                    await asyncio.sleep(0)  # else it is one piece
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(3) == b"abc"


async def test_the_end_does_not_wait_for_the_next_look_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_TICK_S", 3600.0)
    async with asyncio.timeout(60):
        async with connected() as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")


async def test_an_idle_server_looks_at_its_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    async def look(self: HttpServer, counter: int) -> bool:
        looked.append(counter)
        return self.should_exit

    monkeypatch.setattr(http_server, "_TICK_S", 3600.0)
    monkeypatch.setattr(HttpServer, "on_tick", look)
    async with connected():
        await asyncio.sleep(0.5)  # five looks of uvicorn's own loop
        assert len(looked) == 1
