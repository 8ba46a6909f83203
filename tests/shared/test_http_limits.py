"""What a server grants its clients: time for a request's bytes, and a bounded number of connections."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.http.connections import RESERVE, ConnectionLimits, ConnectionPlace, Connections
from shared.http.server import HttpServer

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
NEVER_S = 3600.0
LIMITS = ConnectionLimits(head_s=NEVER_S, body_s=NEVER_S, unread_s=NEVER_S, send_s=NEVER_S)
SHORT_S = 0.5
HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\nabc"


class Site:
    """Answers what its path says."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.num_waiting = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/waits":
            self.num_waiting += 1
            await self.released.wait()
        body = b"ok"
        if scope["path"] == "/echo":
            while (message := await receive())["type"] == "http.request" and message["more_body"]:
                pass
        if scope["path"] == "/long":
            body = b"a" * (64 << 20)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[tuple[Site, HttpServer, int]]:
    site = Site()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(site, limits, log_level="critical", timeout_graceful_shutdown=1)
        running = asyncio.create_task(server.serve([listener]))
        yield site, server, listener.getsockname()[1]
        site.released.set()
        server.should_exit = True
        await running


@contextlib.asynccontextmanager
async def client(port: int, begin: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begin)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ends(reader: asyncio.StreamReader) -> bytes:
    """What comes to the end of the connection."""
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                received += piece
    return received


async def get(port: int, path: str) -> bytes:
    async with client(port, f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode()) as (reader, _):
        return (await ends(reader)).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("begin", "limits", "answer"),
    [
        (b"", ConnectionLimits(head_s=SHORT_S, body_s=NEVER_S), b""),
        (b"GET / HT", ConnectionLimits(head_s=SHORT_S, body_s=NEVER_S), b"HTTP/1.1 408 "),
        (
            HALF_A_BODY.replace(b"/ ", b"/echo ", 1),
            ConnectionLimits(head_s=NEVER_S, body_s=SHORT_S),
            b"HTTP/1.1 408 ",
        ),
        (HALF_A_BODY, ConnectionLimits(head_s=NEVER_S, body_s=NEVER_S, unread_s=SHORT_S), b"HTTP/1.1 200 "),
        (
            b"GET / HTTP/1.1\r\nHost: here\r\n\r\nGET / HT",
            ConnectionLimits(head_s=SHORT_S, body_s=NEVER_S),
            b"HTTP/1.1 200 ",
        ),
    ],
    ids=["nothing", "half a head", "half a body", "half a body that is not read", "half a second request"],
)
@pytest.mark.parametrize("trickles", [False, True], ids=["silent", "a byte at a time"])
async def test_a_client_that_does_not_send_the_rest_is_hung_up_on(
    begin: bytes, limits: ConnectionLimits, answer: bytes, trickles: bool
) -> None:
    async with serving(limits) as (_, server, port), client(port, begin) as (reader, writer):

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b"a")
                    await asyncio.sleep(0.1)

        sending = asyncio.create_task(trickle()) if trickles and begin else None
        assert (await ends(reader)).startswith(answer)
        if sending is not None:
            sending.cancel()
        async with asyncio.timeout(PATIENCE_S):
            while server.clients._address_of:  # noqa: ASYNC110 - the server's own task
                await asyncio.sleep(0.01)


async def test_a_body_that_comes_fast_enough_or_that_the_application_does_not_read_has_time() -> None:
    limits = ConnectionLimits(head_s=NEVER_S, body_s=1.0, body_bytes_per_s=1000)
    head = b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: 200000\r\n\r\n"
    async with serving(limits) as (site, _, port):
        async with client(port, head % b"/waits") as (reader, writer):
            writer.write(b"a" * 150_000)
            await asyncio.sleep(4)
            site.released.set()
            writer.write(b"a" * 50_000)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        async with client(port, head % b"/echo") as (reader, writer):
            for _ in range(40):
                writer.write(b"a" * 5_000)
                await asyncio.sleep(0.1)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_does_not_take_its_response_is_hung_up_on() -> None:
    limits = ConnectionLimits(head_s=NEVER_S, send_s=1.0)
    async with serving(limits) as (_, server, port):
        async with client(port, b"GET /long HTTP/1.1\r\nHost: here\r\n\r\n"), asyncio.timeout(PATIENCE_S):
            while not server.clients._address_of:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while server.clients._address_of:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await get(port, "/") == b"HTTP/1.1 200 OK"


async def test_beyond_the_bound_idle_clients_go_first_and_health_is_answered_at_any_rate() -> None:
    most = 8
    async with serving(ConnectionLimits(connections=most, head_s=NEVER_S)) as (site, _, port):
        async with contextlib.AsyncExitStack() as clients:
            silent = [await clients.enter_async_context(client(port, b"GET ")) for _ in range(2 * most)]
            for _ in range(most):
                await clients.enter_async_context(client(port, b"GET /waits HTTP/1.1\r\nHost: here\r\n\r\n"))
            async with asyncio.timeout(PATIENCE_S):
                while site.num_waiting < most:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [await ends(reader) for reader, _ in silent] == [b""] * len(silent)
            for _ in range(2 * RESERVE):
                await clients.enter_async_context(client(port, b"GET "))
            assert await get(port, "/") == b"HTTP/1.1 503 Service Unavailable"
            assert await get(port, "/health") == b"HTTP/1.1 200 OK"
            assert site.num_waiting == most
        site.released.set()


class OfAddress:
    def __init__(self) -> None:
        self.is_open = True

    def hang_up(self) -> None:
        self.is_open = False


def test_one_address_cannot_take_every_connection_and_a_proxy_on_this_machine_is_none() -> None:
    clients = Connections(ConnectionLimits(connections=8), 1000)
    answered = [OfAddress() for _ in range(4)]
    assert [clients.admit(each, "10.0.0.1") for each in answered] == [ConnectionPlace.OPEN] * 4
    for each in answered[1:]:
        clients.serves(each)
    fifth = OfAddress()
    assert clients.admit(fifth, "10.0.0.1") is ConnectionPlace.OPEN
    assert [each.is_open for each in answered] == [False, True, True, True]
    clients.serves(fifth)
    assert clients.admit(OfAddress(), "10.0.0.1") is ConnectionPlace.NONE
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        of_a_proxy = Connections(ConnectionLimits(connections=8), 1000)
        for each in [OfAddress() for _ in range(8)]:
            assert of_a_proxy.admit(each, address) is ConnectionPlace.OPEN
            of_a_proxy.serves(each)
    assert clients.admit(OfAddress(), "10.0.0.2") is ConnectionPlace.OPEN
    assert clients.num_refused == 1


@pytest.mark.parametrize("files", [20, 256, 1024, 1 << 20])
def test_connections_leave_descriptors_for_what_answers_them(files: int) -> None:
    clients = Connections(ConnectionLimits(), files)
    assert clients.most <= max(32, files // 2)
    assert clients.most <= 10_000
    assert clients.per_address < clients.most


def test_every_server_is_started_by_the_one_module() -> None:
    """`relay` listens in the sandbox of one command, for it alone."""
    own = {"shared/http/server.py", "shared/http/pages.py", "sampler/gateway/relay.py"}
    begins = re.compile(
        r"uvicorn\.(run|Server|Config)\b|start_server\(|\.create_server\((?!\()|HTTPServer\b|start_unix_server"
    )
    found = set()
    for folder in ("shared", "sampler", "trainer", "scripts/tandem"):
        for path in (ROOT / folder).rglob("*.py"):
            for line in path.read_text().splitlines():
                if begins.search(line) and "socket.create_server(" not in line:
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == own
