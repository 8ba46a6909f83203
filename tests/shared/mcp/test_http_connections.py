"""HTTP/1.1 to tool servers, against a server that writes exactly the given bytes."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest

from shared.http.response_head import MAX_HEAD_BYTES
from shared.mcp.http_connections import ToolServerTransport

PATIENCE_S = 60.0  # limit on a slow machine for operations that are immediate on an idle one
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
WHOLE = HEAD + b"Content-Length: 4\r\n\r\nbody"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = CHUNKED + b"9\r\ndata: x\n\n\r\n"
Send = Callable[..., Awaitable[httpx2.Response]]


class ByteServer:
    """Answers each request with the next of `answers`; None: stays silent; `b""`: closes the connection."""

    def __init__(self, answers: list[bytes | None], *, slowly: bool = False) -> None:
        self.answers = answers
        self.slowly = slowly
        self.connections = 0
        self.requests: list[bytes] = []
        self.num_open = 0
        self.changed = asyncio.Event()  # set with every request, and with every end of a connection

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.num_open += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head + await reader.readexactly(4))
                self.changed.set()
                answer = self.answers.pop(0)
                for piece in [answer] if not self.slowly else [bytes([b]) for b in answer or b""]:
                    writer.write(piece or b"")
                    await writer.drain()
                if answer is not None and (not answer or b"close" in answer):
                    break
        writer.close()
        self.num_open -= 1
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def serving(server: ByteServer) -> AsyncIterator[Send]:
    """Yields what sends one request; its body is not read yet."""
    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    transport = ToolServerTransport(ssl.create_default_context(), max_connections=2, idle_s=PATIENCE_S)

    async def send(**timeout: float) -> httpx2.Response:
        request = httpx2.Request(
            "POST", f"http://127.0.0.1:{port}/mcp?x=1", content=b"ping", extensions={"timeout": timeout}
        )
        async with asyncio.timeout(PATIENCE_S):
            return await transport.handle_async_request(request)

    async with listener:
        yield send
        await transport.aclose()
        await server.until(lambda: server.num_open == 0)


async def body_of(response: httpx2.Response) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await response.aread()


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (WHOLE, b"body"),
        (CHUNKED + b"4\r\nbody\r\n3;x=1\r\n, 2\r\n0\r\nX: trailing\r\n\r\n", b"body, 2"),
        (HEAD + b"Connection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 103 Early\r\n\r\n" + WHOLE, b"body"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 503 Later\r\nContent-Length: 4\r\n\r\nbusy", b"busy"),
        (HEAD + b"Content-Length: 300000\r\n\r\n" + b"x" * 300_000, b"x" * 300_000),
    ],
    ids=["length", "chunked", "until closed", "interim", "no content", "error", "long"],
)
async def test_every_framing_of_a_body_is_read_completely(answer: bytes, body: bytes, slowly: bool) -> None:
    if slowly and len(answer) > 1000:
        answer = answer.replace(b"300000", b"3000")[: -len(body) + 3000]
        body = body[:3000]
    server = ByteServer([answer], slowly=slowly)
    async with serving(server) as send:
        response = await send()
        assert (await body_of(response), response.status_code) == (body, int(answer.rsplit(b"HTTP/1.1 ")[-1][:3]))
    assert server.requests[0].startswith(b"POST /mcp?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_a_connection_is_used_again_after_its_body_and_only_then() -> None:
    server = ByteServer([WHOLE] * 4)
    async with serving(server) as send:
        for _ in range(2):
            await body_of(await send())
        assert server.connections == 1
        await (await send()).aclose()  # its body was not read
        await body_of(await send())
        assert server.connections == 2


async def test_a_connection_whose_body_is_on_its_way_is_not_used_again() -> None:
    """Its bytes would be taken for the next answer."""
    server = ByteServer([HEAD + b"Content-Length: 4\r\n\r\n", WHOLE])
    async with serving(server) as send:
        await (await send()).aclose()
        assert await body_of(await send()) == b"body"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("rest", "connections"),
    [(b"0\r\n\r\n", 1), (b"", 2), (b"9\r\ndata: y\n\n\r\n0\r\n\r\n", 2), (b"0\r\n\r\nHTTP/1.1", 2)],
    ids=["its last chunk follows", "it goes on", "another event follows", "what belongs to no exchange follows"],
)
async def test_an_event_stream_closed_after_its_answer_frees_its_connection_if_it_has_ended(
    rest: bytes, connections: int
) -> None:
    server = ByteServer([EVENT + rest, WHOLE])
    async with serving(server) as send:
        response = await send()
        async for piece in response.aiter_raw():
            assert piece == b"data: x\n\n"
            break
        await response.aclose()
        assert await body_of(await send()) == b"body"
    assert server.connections == connections


@pytest.mark.parametrize("stray", [b"HTTP/1.1 200 OK\r\n", b"x"])
async def test_a_connection_with_bytes_that_belong_to_no_exchange_is_not_used_again(stray: bytes) -> None:
    server = ByteServer([WHOLE + stray, WHOLE])
    async with serving(server) as send:
        for _ in range(2):
            assert await body_of(await send()) == b"body"
    assert server.connections == 2


async def test_a_connection_that_its_server_has_closed_is_not_used_again_even_if_that_is_not_noticed_yet() -> None:
    server = ByteServer([WHOLE, b"", WHOLE])
    async with serving(server) as send:
        await body_of(await send())
        with pytest.raises(httpx2.RemoteProtocolError):
            await send()
        await server.until(lambda: server.num_open == 0)
        assert await body_of(await send()) == b"body"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, httpx2.ReadTimeout),
        (CHUNKED + b"4\r\nbo", httpx2.ReadTimeout),
        (b"", httpx2.RemoteProtocolError),
        (b"SSH-2.0\r\n\r\n", httpx2.RemoteProtocolError),
        (HEAD + b"Content-Length: -1\r\n\r\n", httpx2.RemoteProtocolError),
        (CHUNKED + b"nine\r\n", httpx2.RemoteProtocolError),
        (CHUNKED + b"1\r\nbody\r\n0\r\n\r\n", httpx2.RemoteProtocolError),
        (HEAD + b"Content-Length: 9\r\n\r\nclose", httpx2.RemoteProtocolError),
        (HEAD + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 5000, httpx2.RemoteProtocolError),
    ],
)
async def test_what_is_no_whole_answer_is_an_error_of_its_kind(
    answer: bytes | None, error: type[httpx2.TransportError]
) -> None:
    async with serving(ByteServer([answer])) as send:
        with pytest.raises(error):
            await body_of(await send(read=0.5 if error is httpx2.ReadTimeout else PATIENCE_S))


async def test_requests_beyond_the_connections_wait_for_a_place() -> None:
    server = ByteServer([None, None, WHOLE])
    async with serving(server) as send:
        silent = [asyncio.create_task(send()) for _ in range(2)]
        await server.until(lambda: len(server.requests) == 2)
        with pytest.raises(httpx2.PoolTimeout):
            await send(pool=0.1)
        silent[0].cancel()
        assert await body_of(await send(pool=PATIENCE_S)) == b"body"
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    transport = ToolServerTransport(ssl.create_default_context(), max_connections=1, idle_s=0.0)
    for url, error in (
        ("http://127.0.0.1:1/", httpx2.ConnectError),
        ("http://a.invalid./", httpx2.ConnectError),
        ("ftp://127.0.0.1/", httpx2.UnsupportedProtocol),
    ):
        with pytest.raises(error):
            await transport.handle_async_request(httpx2.Request("GET", url))
