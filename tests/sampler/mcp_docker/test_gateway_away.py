"""Clients that close connections: they live, or have died; and servers that hang at a session's end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sampler.core.errors import ToolServerDied
from sampler.core.tools import ToolLimits, ToolSession
from sampler.mcp_docker.links.channel import RemoteChannel
from sampler.mcp_docker.links.messages import Message, encoded, request
from sampler.mcp_docker.links.server_link import CLIENT_INFO
from tests.sampler.mcp_docker.gateways import ACCEPT, PATIENCE_S, Gateway, RawClient, gateway
from tests.sampler.mcp_docker.modern_client import ModernClient, message_of
from tests.sampler.mcp_docker.test_gateway_protocol import talkers

pytestmark = pytest.mark.slow
EPISODE = "run/7"


async def text(user: ModernClient, name: str) -> str:
    return str((await user.call(name))["content"][0]["text"])


async def close_a_call_and_a_stream(user: ModernClient) -> None:
    """As a client of 2026-07-28 cancels a call, and ends a subscription."""
    request = user._request("tools/call", {"name": "wait", "arguments": {"seconds": 600}}, [], 1)
    with pytest.raises(httpx.ReadTimeout):
        await user.http.post("/mcp", **request, timeout=3.0)
    async with asyncio.timeout(PATIENCE_S), user.listening(7, toolsListChanged=True) as stream:
        await anext(stream)


@pytest.mark.thorough
async def test_a_client_that_closes_a_call_and_a_stream_keeps_its_tools_until_its_lease_ends(tmp_path: Path) -> None:
    flags = ("--warm_sessions", "0", "--lease_s", "3000", "--broken_s", "2")
    with gateway(tmp_path, talkers("ann"), *flags) as started:
        user = ModernClient(started, EPISODE)
        assert await text(user, "waits") == "0"
        await close_a_call_and_a_stream(user)
        await started.until_in_flight(0)
        await asyncio.sleep(8)  # four times broken_s: it waits for its model, say
        assert await text(user, "waits") == "1"  # the same process
        assert await text(user, "cancellations") == "1"
        await user.close()


@pytest.mark.thorough
async def test_a_client_that_died_is_noticed_by_its_lease_and_one_that_was_too_slow_is_told(tmp_path: Path) -> None:
    flags = ("--warm_sessions", "0", "--lease_s", "8", "--broken_s", "3000")
    with gateway(tmp_path, talkers("ann"), *flags) as started:
        user = ModernClient(started, EPISODE)
        assert await text(user, "waits") == "0"
        await close_a_call_and_a_stream(user)
        await user.close()  # as when it is killed: the gateway learns of closed connections alone
        await started.until(sessions=0, ending=0)
        assert started.folders == []
        user = ModernClient(started, EPISODE)
        answer = await user.post("tools/call", name="waits", arguments={})
        assert (answer.status_code, message_of(answer)["error"]["code"]) == (502, -32500)
        assert "ended after 8 s without a request" in answer.text
        assert await text(user, "waits") == "0"  # it was told: now it has new tools
        other = ModernClient(started, "run/8")
        assert await text(other, "waits") == "0"
        for each in (user, other):
            await each.close()


@pytest.mark.thorough
async def test_an_episode_of_the_older_api_is_told_once_too_and_those_without_an_id_are_not(tmp_path: Path) -> None:
    with gateway(tmp_path, None, "--warm_sessions", "0", "--lease_s", "4") as started:
        async with httpx.AsyncClient(base_url=started.url, timeout=PATIENCE_S) as http:
            for headers, wanted in (({"Tandem-Episode-Id": EPISODE}, [200, 502, 200]), ({}, [200, 200])):
                found = []
                for _ in wanted:
                    answer = await http.post("/mcpapi/tool/box.echo", json={"text": "a"}, headers=headers)
                    found.append(answer.status_code)
                    await started.until(sessions=0, ending=0)
                assert found == wanted, answer.text


async def number(raw: RawClient, name: str) -> int:
    return int((await raw.call(name, 7))["result"]["content"][0]["text"])


def begun(raw: RawClient, params: Message) -> tuple["asyncio.Task[httpx.Response]", asyncio.Event]:
    """A call with the id 2, and the event that it was sent."""
    is_sent = asyncio.Event()

    async def trace(event: str, _: Message) -> None:
        if event == "http11.send_request_body.complete":
            is_sent.set()

    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    asking = raw.http.post("/mcp", json=message, headers=raw.headers, extensions={"trace": trace})
    return asyncio.create_task(asking), is_sent


async def test_a_cancellation_finds_the_call_before_it(tmp_path: Path) -> None:
    """Also while the gateway looks whether the client, of which a connection broke off, lives."""
    with gateway(tmp_path, talkers("ann"), "--warm_sessions", "0", "--broken_s", "3000") as started:
        for _ in range(5):  # the pauses fit into a tenth of a second on a machine that is not too busy
            raw = RawClient(started)
            await raw.open()
            await asyncio.gather(*(raw.ask("ping", number) for number in range(4)))  # connections that are open already
            listening = {name: value for name, value in raw.headers.items() if name != "Content-Type"}
            async with raw.http.stream("GET", "/mcp", headers=listening | {"Accept": ACCEPT}) as stream:
                assert stream.status_code == 200
            await asyncio.sleep(0.3)  # it has broken off
            ping = asyncio.create_task(raw.ask("ping", 1))
            await asyncio.sleep(0.05)
            call, is_sent = begun(raw, {"name": "wait", "arguments": {"seconds": 600}})
            await is_sent.wait()
            await asyncio.sleep(0.07)
            told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
            assert (await raw.post(told)).status_code == 202
            async with asyncio.timeout(60):
                assert (await call).status_code == 202  # cancelled: there is no answer
            await ping
            async with asyncio.timeout(PATIENCE_S):  # the tool server has not heard of it, or it knows the end too
                while await number(raw, "waits") != await number(raw, "cancellations"):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)
            await raw.close()


@asynccontextmanager
async def deaf(started: Gateway, fault: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A proxy that resets the connection on which it sees `fault`, and takes a DELETE without an answer; its port, and these."""
    deleted: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, into: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            if piece.startswith(b"DELETE"):
                deleted.append(piece)
                await asyncio.Event().wait()
            if fault in piece:
                into.transport.abort()
                back.transport.abort()
                return
            into.write(piece)
        into.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", started.port)
        writers.extend((writer, inner))
        for task in (copy(reader, inner, writer), copy(inner_reader, writer, inner)):
            tasks.add(asyncio.ensure_future(task))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], deleted
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in writers:
            each.close()
        await asyncio.gather(*(each.wait_closed() for each in writers), return_exceptions=True)
        await server.wait_closed()


async def test_a_server_that_does_not_answer_the_end_hides_no_cause_and_is_told_once(tmp_path: Path) -> None:
    with gateway(tmp_path, None, "--warm_sessions", "0") as started:
        async with deaf(started, b"break the connection here") as (port, deleted):
            server = replace(started.server, url=f"http://127.0.0.1:{port}/mcp")
            session = ToolSession([server], limits=ToolLimits(close_s=600.0))
            await session.open()
            async with asyncio.timeout(PATIENCE_S):  # `end_session` waits for 300 s
                with pytest.raises(ToolServerDied, match=r"RemoteProtocolError|ReadError"):
                    await session.call("echo", {"text": "break the connection here"})
            quick = ToolSession([server], limits=ToolLimits(close_s=2.0))
            await quick.open()
            await quick.close()
            assert len(deleted) == 2
        await session.close()


async def test_the_end_of_a_session_by_url_is_known_before_its_server_has_heard_of_it(tmp_path: Path) -> None:
    with gateway(tmp_path, None, "--warm_sessions", "0") as started:
        async with deaf(started, b"break the connection here") as (port, _):
            server = replace(started.server, url=f"http://127.0.0.1:{port}/mcp")
            channel = RemoteChannel(server, ToolLimits(close_s=600.0))
            heard: asyncio.Queue[Message] = asyncio.Queue()
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            await channel.open(lambda message, _: heard.put_nowait(message), ended.set_result)
            params: Message = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT_INFO}
            async with asyncio.timeout(PATIENCE_S):  # `end_session` waits for 300 s
                await channel.send(encoded(request(1, "initialize", params)))
                assert "result" in await heard.get()
                await channel.send(encoded(request(2, "break the connection here", {})))
                assert "Error" in await ended
        await channel.close()
