"""Tool servers that start slowly, are too busy, or unavailable for a while: sessions wait, and no failure is counted."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sampler.core.episode.episode import play
from sampler.core.errors import ToolServerDied, ToolServerUnavailable, ToolTimeout
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.tools import ToolLimits, ToolServer, ToolSession, Traffic
from shared.documents.states import RecordStatus, SlotStatus, Termination
from shared.processes.mongod import free_port
from shared.store import Store
from tests.sampler import episodes
from tests.sampler.boxes import PATIENCE_S, SERVERS, Box, start_box
from tests.shared.builders import claim, import_tasks

HOURS = 3600.0
LIMITS = ToolLimits(open_s=PATIENCE_S)


@asynccontextmanager
async def busy_box(tmp_path: Path) -> AsyncIterator[tuple[Box, Path]]:
    """A server that is too busy for as many POST requests as the file has lines."""
    refusals = tmp_path / "refusals"
    refusals.write_text("")
    box = start_box("--busy", str(refusals))
    try:
        yield box, refusals
    finally:
        box.kill()


# ---------------------------------------------------------------------- opening


async def test_a_bounded_number_of_stdio_servers_starts_at_once_and_all_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    together = 3  # each server waits until as many have started, so that they do start at once
    args = ("-S", str(SERVERS / "slow_start.py"), str(log), str(together))
    servers = [ToolServer(f"s{n}", command=sys.executable, args=args) for n in range(24)]
    async with ToolSession(servers, limits=LIMITS, traffic=Traffic(max_starting=together)) as session:
        assert len(session.list_tools()) == len(servers)
    starting = most = 0
    for line in log.read_text().splitlines():
        starting += 1 if line == "started" else -1
        most = max(most, starting)
    assert most == together


async def test_a_session_with_an_unavailable_server_opens_when_it_returns() -> None:
    port = free_port()
    traffic = Traffic(patience_s=HOURS)
    server = ToolServer("box", url=f"http://127.0.0.1:{port}/mcp")
    sessions = [ToolSession([server], limits=LIMITS, traffic=traffic) for _ in range(20)]
    opening = asyncio.gather(*(session.open() for session in sessions))
    async with asyncio.timeout(PATIENCE_S):
        while traffic.of(server).circuit.failures < 3:  # noqa: ASYNC110 - as often as it is tried
            await asyncio.sleep(0.05)
    assert not traffic.has_room()
    (alarm,) = traffic.alarms()
    assert "no session with tool server box" in alarm
    assert "ConnectError" in alarm
    assert "no failure is counted" in alarm
    box = start_box("--port", str(port))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await opening
        assert (await sessions[0].call("echo", {"text": "hé"})).text == "hé"
        assert traffic.has_room()
        assert traffic.alarms() == []
        await asyncio.gather(*(session.close() for session in sessions))
    finally:
        box.kill()


async def test_a_busy_server_is_retried_when_it_requests_without_counting_a_failure(tmp_path: Path) -> None:
    async with busy_box(tmp_path) as (box, refusals):
        refusals.write_text("503 0.2\n429\n503 Wed, 21 Oct 2015 07:28:00 GMT")
        traffic = Traffic(patience_s=HOURS)
        async with ToolSession([box.server], limits=LIMITS, traffic=traffic) as session:
            assert (await session.call("add", {"a": 2, "b": 3})).text == "5"
        assert refusals.read_text() == ""
        assert traffic.of(box.server).circuit.failures == 0
        refusals.write_text("503 3600")
        with pytest.raises(ToolServerUnavailable, match="HTTP 503: busy, retry after 3600 s"):
            await ToolSession([box.server], limits=LIMITS, traffic=Traffic(patience_s=60)).open()


# ---------------------------------------------------------------------- calls


@pytest.mark.parametrize("refusal", ["503 3", "429 3", "429"])
async def test_a_call_rejected_by_a_busy_server_is_repeated_with_its_time_out_paused(
    tmp_path: Path, refusal: str
) -> None:
    async with busy_box(tmp_path) as (box, refusals), ToolSession([box.server], limits=LIMITS) as session:
        assert (await session.call("bump", {}, timeout_s=2)).text
        refusals.write_text(refusal)
        again = await session.call("bump", {}, timeout_s=2)  # shorter than the server's requested wait
        assert (json.loads(again.text)["n"], again.retries) == (2, 0), "in the same session, once"
        assert refusals.read_text() == ""


async def test_a_call_lost_by_a_gateway_is_a_failure_and_too_long_a_wait_is_not_blamed_on_the_episode(
    tmp_path: Path,
) -> None:
    async with busy_box(tmp_path) as (box, refusals):
        async with ToolSession([box.server], limits=LIMITS) as session:
            refusals.write_text("503")
            with pytest.raises(ToolServerDied):
                await session.call("bump", {})
        async with ToolSession([box.server], limits=LIMITS) as session:
            refusals.write_text("503 3600")
            with pytest.raises(ToolServerUnavailable, match="503"):
                await session.call("bump", {})


async def test_an_unreachable_server_is_not_blamed_on_the_episode_and_a_time_out_is(box: Box) -> None:
    traffic = Traffic()
    async with ToolSession([box.server], traffic=traffic) as session:
        with pytest.raises(ToolTimeout):
            await session.call("slow", {"seconds": 600}, timeout_s=0.2)
        assert traffic.of(box.server).circuit.is_closed, "a slow tool is no dead server"
    async with ToolSession([box.server], traffic=traffic) as session:
        box.kill()
        with pytest.raises(ToolServerUnavailable, match="ConnectError"):
            await session.call("echo", {"text": "x"})
        assert not traffic.of(box.server).circuit.is_closed


# ---------------------------------------------------------------------- slots


async def test_an_absent_server_counts_no_failure_and_the_record_has_the_reason(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    url = f"http://127.0.0.1:{free_port()}/mcp"
    async with episodes.resources(store, episodes.says("<answer>4</answer>"), mcp_manager_url=url) as shared:
        for attempt in (1, 2, 3):
            sampler = MCPSampler(shared, await claim(store, max_failures=1))
            assert await play(sampler) is None
            record, slot, dispatches = await episodes.ended(store, sampler)
            assert (record.status, record.termination) == (RecordStatus.ABANDONED, Termination.TOOL_SERVER_AWAY)
            assert "ConnectError" in (record.error or "")
            assert (slot.status, slot.failures, slot.attempt, dispatches) == (SlotStatus.OPEN, 0, attempt, [])


# ---------------------------------------------------------------------- connections


class Door:
    """A proxy that lets `most` connections through to a server at once; further ones wait in front of it, or are refused."""

    def __init__(self, port: int, most: int, *, refuses: bool) -> None:
        self.refused = 0
        self.inside = 0
        self.most_inside = 0
        self.url = ""
        self._port = port
        self._places = asyncio.Semaphore(most)
        self._refuses = refuses
        self._handlers: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        proxy = await asyncio.start_server(self._let_in, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/mcp"
        yield
        proxy.close()
        await asyncio.wait(self._handlers, timeout=PATIENCE_S)

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        if self._refuses and self._places.locked():
            self.refused += 1
            writer.transport.abort()
            return
        async with self._places:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            up, out = await asyncio.open_connection("127.0.0.1", self._port)
            ends = [asyncio.create_task(_copy(*way)) for way in ((reader, out), (up, writer))]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)
            for side in (out, writer):
                side.transport.abort()
            self.inside -= 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()


@pytest.mark.parametrize("refuses", [False, True], ids=["makes the others wait", "refuses the others"])
async def test_sessions_share_a_server_with_fewer_connections_than_sessions(shared_box: Box, refuses: bool) -> None:
    """Left to themselves, 12 sessions would hold all connections, each for a stream on which it only listens."""
    door = Door(shared_box.port, 12, refuses=refuses)
    async with door.opened(), asyncio.timeout(PATIENCE_S):
        server = ToolServer("box", url=door.url, max_connections=12)
        traffic = Traffic(patience_s=PATIENCE_S)
        sessions = [ToolSession([server], limits=LIMITS, traffic=traffic) for _ in range(32)]
        await asyncio.gather(*(session.open() for session in sessions))
        for _ in range(2):
            answers = await asyncio.gather(*(session.call("bump", {}, PATIENCE_S) for session in sessions))
        assert [json.loads(answer.text)["n"] for answer in answers] == [2] * len(sessions)
        assert door.most_inside <= 12
        assert door.refused == 0
        await asyncio.gather(*(session.close() for session in sessions))
