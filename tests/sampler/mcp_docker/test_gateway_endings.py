"""The end of a session: it reaches the gateway, or the gateway notices that the client is away."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sampler.core.errors import ToolServerDied
from sampler.core.tools import ToolSession
from tests.sampler.mcp_docker.gateways import ACCEPT, Gateway, RawClient, gateway

pytestmark = pytest.mark.slow
PATIENT = ("--warm_sessions", "0", "--lease_s", "3000")  # so that no lease ends what a client should have ended
BREAK = b"break the connection here"


@asynccontextmanager
async def fragile(started: Gateway) -> AsyncIterator[int]:
    """A proxy that resets the connection on which it sees BREAK; its port."""
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, into: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                if BREAK in piece:
                    into.transport.abort()
                    back.transport.abort()
                    return
                into.write(piece)
        except ConnectionError:
            pass
        into.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", started.port)
        writers.extend((writer, inner))
        await asyncio.gather(copy(reader, inner, writer), copy(inner_reader, writer, inner))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()


async def test_the_end_of_a_session_reaches_the_gateway_after_a_connection_broke(tmp_path: Path) -> None:
    """The SDK ends its transport with the broken connection, and sends nothing more."""
    with gateway(tmp_path, None, *PATIENT, "--broken_s", "3000") as started:
        async with fragile(started) as port:
            session = ToolSession([replace(started.server, url=f"http://127.0.0.1:{port}/mcp")])
            await session.open()
            assert (await session.call("echo", {"text": "a"})).text == "a"
            with pytest.raises(ToolServerDied):
                await session.call("echo", {"text": BREAK.decode()})
            await session.close()
            await started.until(sessions=0, ending=0)


@pytest.mark.thorough
async def test_a_session_whose_client_is_never_heard_again_does_not_keep_its_lease(tmp_path: Path) -> None:
    with gateway(tmp_path, None, *PATIENT, "--broken_s", "10") as started:
        raw, idle = RawClient(started), RawClient(started)
        await idle.open()
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        opened = await raw.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert opened.status_code == 200
        await started.until(sessions=1, ending=0)
        assert "reason=unused" in started.log.read_text()
        assert (await idle.call("echo", text="idle"))["result"]["content"][0]["text"] == "idle"
        assert await idle.close() == 200
        await raw.http.aclose()


async def test_a_request_that_was_on_its_way_shows_no_living_client(tmp_path: Path) -> None:
    """Its client ended after it, and the gateway reads it after that end."""
    with gateway(tmp_path, None, *PATIENT, "--broken_s", "10") as started:
        raw = RawClient(started)
        await raw.open()
        listening = {name: value for name, value in raw.headers.items() if name != "Content-Type"} | {"Accept": ACCEPT}
        async with raw.http.stream("GET", "/mcp", headers=listening) as stream:
            assert stream.status_code == 200
        await raw.http.aclose()  # the stream has broken off
        await asyncio.sleep(1)
        body = b'{"jsonrpc":"2.0","id":9,"method":"ping"}'
        head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nMcp-Session-Id: {raw.headers['Mcp-Session-Id']}\r\n"
        head += f"Accept: {ACCEPT}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", started.port)) as late:
            late.sendall(head.encode() + body)
        await started.until(sessions=0, ending=0)
        assert "reason=broken_off" in started.log.read_text()


@pytest.mark.thorough
async def test_a_client_that_breaks_a_call_off_and_goes_on_keeps_its_session(tmp_path: Path) -> None:
    with gateway(tmp_path, None, *PATIENT, "--broken_s", "10") as started:
        raw = RawClient(started)
        await raw.open()
        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "slow", "arguments": {"seconds": 600}},
        }
        with pytest.raises(httpx.ReadTimeout):
            await raw.http.post("/mcp", json=message, headers=raw.headers, timeout=2.0)
        await started.until_in_flight(0)
        assert (await raw.call("echo", 2, text="b"))["result"]["content"][0]["text"] == "b"
        await asyncio.sleep(22)  # twice broken_s
        assert (await raw.call("echo", 3, text="c"))["result"]["content"][0]["text"] == "c"
        assert await raw.close() == 200
