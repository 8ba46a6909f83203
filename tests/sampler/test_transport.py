"""HTTP/1.1 to engines, against a server that writes exactly the given bytes."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from sampler.core.engines.client import transport
from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.transport import KeepAliveTransport
from sampler.core.errors import EngineError
from shared.http.response_head import MAX_HEAD_BYTES
from shared.processes.mongod import free_port

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: 4\r\n\r\nbody"
PATIENCE_S = 60.0  # limit on a slow machine for operations that are immediate on an idle one


class Server:
    """Answers each request with the next of `answers`; None: stays silent. `b""` ends the connection."""

    def __init__(self, answers: list[bytes | None], *, slowly: bool = False) -> None:
        self.answers = answers
        self.slowly = slowly
        self.connections = 0
        self.hung_up = asyncio.Event()
        self.requests: list[bytes] = []
        self.handlers: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        handler = asyncio.current_task()
        assert handler is not None
        self.handlers.add(handler)
        try:
            await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        writer.transport.abort() if self.hung_up.is_set() else writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = False
        while not ended:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head + await reader.readexactly(4))
            answer = self.answers.pop(0)
            ended = answer is not None and (not answer or b"close" in answer)
            for piece in [answer] if not self.slowly else [bytes([b]) for b in answer or b""]:
                writer.write(piece or b"")
                await writer.drain()
                await asyncio.sleep(0)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Callable[[], "asyncio.Task[httpx.Response]"]]:
    """Yields what sends one request."""
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    kept = KeepAliveTransport(max_connections=8, idle_s=PATIENCE_S, connect_s=PATIENCE_S)

    def send() -> "asyncio.Task[httpx.Response]":
        request = httpx.Request("POST", f"http://127.0.0.1:{port}/generate?x=1", content=b"ping")
        return asyncio.create_task(_within(kept.handle_async_request(request)))

    try:
        yield send
    finally:
        await kept.aclose()
        await asyncio.wait(server.handlers, timeout=PATIENCE_S)
        listener.close()
        await listener.wait_closed()


async def _within(exchange: "asyncio.Future[httpx.Response] | object") -> httpx.Response:
    async with asyncio.timeout(PATIENCE_S):
        return await exchange  # type: ignore[misc,no-any-return]  # a coroutine of the transport's


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (WHOLE, b"body"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n3;x=1\r\n, 2\r\n0\r\n\r\n", b"body, 2"),
        (HEAD + b"Connection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE, b"body"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 503 Later\r\nContent-Length: 4\r\n\r\nbusy", b"busy"),
    ],
    ids=["length", "chunked", "until closed", "interim", "no content", "error"],
)
async def test_every_body_framing_is_read_completely(answer: bytes, body: bytes, slowly: bool) -> None:
    server = Server([answer], slowly=slowly)
    async with serving(server) as send:
        response = await send()
        assert (await response.aread(), response.status_code) == (body, int(answer.rsplit(b"HTTP/1.1 ")[-1][:3]))
    assert server.requests[0].startswith(b"POST /generate?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Content-Length: 4\r\n" in server.requests[0]


async def test_a_connection_is_reused_and_concurrent_requests_have_separate_ones() -> None:
    server = Server([WHOLE] * 6)
    async with serving(server) as send:
        for _ in range(3):
            await send()
        assert server.connections == 1
        await asyncio.gather(send(), send(), send())
        assert server.connections == 3


async def test_a_connection_closed_by_the_server_is_not_reused() -> None:
    server = Server([WHOLE, HEAD + b"Connection: close\r\nContent-Length: 4\r\n\r\nbody", WHOLE])
    async with serving(server) as send:
        for _ in range(3):
            await send()
    assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        HEAD + b"Content-Length: 40\r\nConnection: close\r\n\r\nhalf",
        b"SSH-2.0 hello close\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n-9\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999\r\n\r\nlong",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\nlong",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nbody",
    ],
    ids=[
        *("nothing", "half", "another protocol", "a part of negative size", "negative size", "huge", "a huge part"),
        "compressed",
    ],
)
async def test_a_truncated_or_non_http_response_is_an_error(answer: bytes) -> None:
    async with serving(Server([answer, WHOLE])) as send:
        with pytest.raises(httpx.TransportError):
            await send()
        assert (await send()).status_code == 200


@pytest.mark.parametrize(
    ("begin", "rest"),
    [
        (HEAD + b"X: ", b"a"),
        (HEAD, b"X: a\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (HEAD + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\nContent-Length: 4\r\n\r\nbody", b""),
    ],
    ids=["one endless field", "endless fields", "endless interim answers", "a long one that ends"],
)
async def test_a_head_beyond_the_bound_is_an_error_even_if_the_server_continues(begin: bytes, rest: bytes) -> None:
    endless = begin + rest * (MAX_HEAD_BYTES // len(rest) + 1 if rest else 0)
    async with serving(Server([endless, WHOLE])) as send:
        with pytest.raises(httpx.RemoteProtocolError, match=f"no end of the head within {MAX_HEAD_BYTES} bytes"):
            await send()
        assert (await send()).status_code == 200


async def test_a_body_without_a_size_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 1000)
    async with serving(Server([HEAD + b"\r\n" + b"a" * 2001, WHOLE])) as send:
        with pytest.raises(httpx.RemoteProtocolError, match="no end of its body within 2000 bytes"):
            await send()
        assert (await send()).status_code == 200


async def test_a_cancelled_exchange_closes_its_connection() -> None:
    server = Server([None, WHOLE])
    async with serving(server) as send:
        waiting = send()
        while not server.requests:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.01)
        waiting.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await server.hung_up.wait()
        assert (await send()).status_code == 200
    assert server.connections == 2


async def test_a_closed_port_and_a_wrong_scheme_raise_their_specific_errors() -> None:
    kept = KeepAliveTransport(max_connections=1, idle_s=PATIENCE_S, connect_s=PATIENCE_S)
    with pytest.raises(httpx.ConnectError):
        await kept.handle_async_request(httpx.Request("GET", f"http://127.0.0.1:{free_port()}/"))
    with pytest.raises(httpx.UnsupportedProtocol):
        await kept.handle_async_request(httpx.Request("GET", "ftp://127.0.0.1/"))
    async with EngineClient() as client:
        with pytest.raises(Exception, match="expected something like http://host:30000"):
            await client.model_info("localhost:30000")


async def test_a_server_that_writes_random_bytes_or_damages_its_answers_fails_only_its_own_requests() -> None:
    rng = random.Random(0)
    good = [WHOLE, HEAD + b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"]
    damaged = [rng.randbytes(rng.randint(0, 200)) for _ in range(50)]
    for _ in range(200):
        answer = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 4)):
            answer[rng.randrange(len(answer))] = rng.randrange(256)
        damaged.append(bytes(answer))

    async def write(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(damaged.pop())
        writer.close()

    listener = await asyncio.start_server(write, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with EngineClient() as client:
        while damaged:
            with contextlib.suppress(EngineError):
                await client.model_info(f"http://127.0.0.1:{port}")
    listener.close()
    await listener.wait_closed()
