"""MCP sessions whose servers crash, hang, or are absent: an infrastructure failure that does not disturb the caller's task."""

import asyncio
import contextlib

import pytest

from sampler.core.errors import ToolServerDied, ToolServerUnavailable, ToolTimeout
from sampler.core.tools import ToolLimits, ToolServer, ToolSession
from shared.mcp.servers import Remote
from shared.processes.mongod import free_port
from tests.sampler.boxes import PATIENCE_S, Box, calls_of_slow, start_box, stdio, undisturbed, until_slow


async def test_a_server_killed_during_a_call_raises_tool_server_died(box: Box) -> None:
    async with undisturbed(), ToolSession([box.server]) as session, ToolSession([box.server]) as idle:
        call = asyncio.create_task(session.call("slow", {"seconds": 600}))
        await until_slow(idle, running=1)
        box.kill()
        async with asyncio.timeout(PATIENCE_S):  # half of the patience with a call
            with pytest.raises(ToolServerDied, match=r"box \(http://127"):
                await call
            with pytest.raises(ToolServerDied):
                await session.call("echo", {"text": "again"})
            with pytest.raises(ToolServerUnavailable):
                await idle.call("echo", {"text": "again"})


async def test_a_server_that_crashes_raises_tool_server_died(box: Box) -> None:
    async with undisturbed(), ToolSession([box.server]) as session:
        with pytest.raises(ToolServerDied):
            await session.call("crash", {})


async def test_a_restarted_server_has_lost_the_session() -> None:
    box = start_box("--port", str(free_port()))  # the kernel gives no other process this one while the server is away
    try:
        async with undisturbed(), ToolSession([box.server]) as session:
            box.kill()
            box = start_box("--port", str(box.port))
            with pytest.raises(ToolServerDied):
                await session.call("bump", {})
    finally:
        box.kill()


async def test_a_stdio_server_that_exits_raises_tool_server_died() -> None:
    async with undisturbed(), ToolSession([stdio("box")]) as session:
        assert (await session.call("echo", {"text": "hé"})).text == "hé"
        with pytest.raises(ToolServerDied):
            await session.call("crash", {})
        with pytest.raises(ToolServerDied):
            await session.call("echo", {"text": "again"})


async def test_a_call_that_times_out_is_an_infrastructure_failure_and_the_session_continues(shared_box: Box) -> None:
    async with ToolSession([shared_box.server]) as session:
        before = await calls_of_slow(session)
        with pytest.raises(ToolTimeout, match=r"0\.3 s"):
            await session.call("slow", {"seconds": 600}, timeout_s=0.3)
        assert (await session.call("echo", {"text": "still here"})).text == "still here"
        await until_slow(session, running=before["running"])


async def test_a_cancelled_episode_cancels_its_call_at_the_server(shared_box: Box) -> None:
    async with ToolSession([shared_box.server]) as session:
        before = await calls_of_slow(session)
        call = asyncio.create_task(session.call("slow", {"seconds": 600}))
        await until_slow(session, running=before["running"] + 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until_slow(session, running=before["running"], cancelled=before["cancelled"] + 1)


async def test_opening_fails_with_the_cause_when_its_port_is_closed_or_the_path_is_wrong(shared_box: Box) -> None:
    closed = ToolServer(name="closed", url="http://127.0.0.1:9/mcp")
    wrong_path = ToolServer(name="lost", url=f"http://127.0.0.1:{shared_box.port}/nothing")
    absent = ToolServer(name="absent", command="/no/such/program")
    async with undisturbed():
        for server, words in ((closed, "ConnectError"), (wrong_path, "lost"), (absent, "No such file")):
            with pytest.raises(ToolServerUnavailable, match=words):
                await ToolSession([server]).open()


async def test_opening_times_out_if_the_server_is_silent() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    mute = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    server = ToolServer(name="mute", url=f"http://127.0.0.1:{mute.sockets[0].getsockname()[1]}/mcp")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ToolServerUnavailable):
            await ToolSession([server], limits=ToolLimits(open_s=0.5, close_s=1)).open()
        mute.close()
        await mute.wait_closed()


@pytest.mark.parametrize("remote", ["http", "sse"])
async def test_opening_times_out_as_a_whole_if_the_server_trickles_bytes(remote: Remote) -> None:
    """No read waits long: over SSE comments come, but never the address; over HTTP one header field after the other."""
    drops = {"http": b"X: y\r\n", "sse": b": still here\r\n\r\n"}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + (b"\r\n" if remote == "sse" else b"")

    handlers: set[asyncio.Task[None] | None] = set()
    over = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        writer.write(head)
        with contextlib.suppress(ConnectionError):
            while not over.is_set():
                writer.write(drops[remote])
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.transport.abort()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        server = ToolServer(name="drip", url=url, remote=remote)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(ToolServerUnavailable, match=r"no session within 0\.5 s"):
                    await ToolSession([server], limits=ToolLimits(open_s=0.5, close_s=1)).open()
        finally:
            over.set()
            await asyncio.gather(*filter(None, handlers))


async def test_one_server_that_cannot_be_opened_closes_the_others(shared_box: Box) -> None:
    session = ToolSession([shared_box.server, ToolServer(name="absent", url="http://127.0.0.1:9/mcp")])
    with pytest.raises(ToolServerUnavailable, match="absent"):
        await session.open()
    assert all(link._connection._task is None or link._connection._task.done() for link in session._links)
