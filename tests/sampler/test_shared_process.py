"""One process of a stdio server for all episodes (`"shared": true`): what they share, and what they do to each other."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import psutil
import pytest

from sampler.core.errors import ToolServerDied, ToolTimeout
from sampler.core.tools import ToolLimits, ToolServer, ToolSession, Traffic
from sampler.core.tools.catalog import ToolCatalog
from tests.sampler.boxes import PATIENCE_S, stdio, undisturbed, until_slow

LIMITS = ToolLimits(open_s=PATIENCE_S, max_restarts=3)


@pytest.fixture
def server() -> ToolServer:
    return replace(stdio("box"), shared=True)


@asynccontextmanager
async def sessions(server: ToolServer, count: int, traffic: Traffic) -> AsyncIterator[list[ToolSession]]:
    opened = [ToolSession([server], limits=LIMITS, traffic=traffic, episode=f"run/{n}") for n in range(count)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(session) for session in opened))
        yield opened


async def pid_of(session: ToolSession) -> int:
    return int(json.loads((await session.call("bump", {})).text)["pid"])


async def until_ended(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while psutil.pid_exists(pid):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.01)


async def test_episodes_share_a_process_that_ends_with_the_last_of_them(server: ToolServer) -> None:
    traffic = Traffic()
    async with sessions(server, 8, traffic) as opened:
        answers = [json.loads((await session.call("bump", {})).text) for session in opened]
        (pid,) = {answer["pid"] for answer in answers}
        assert {answer["episode"] for answer in answers} == {None}
        for session in opened[:7]:
            await session.close()
        assert await pid_of(opened[7]) == pid
    await until_ended(pid)
    async with sessions(server, 2, traffic) as opened:
        assert await pid_of(opened[0]) != pid


async def test_each_episode_has_a_process_of_its_own_where_it_is_not_shared(server: ToolServer) -> None:
    async with sessions(replace(server, shared=False), 2, Traffic()) as (one, other):
        assert await pid_of(one) != await pid_of(other)


async def test_its_end_is_a_failure_of_the_server_and_never_an_act_of_the_model(server: ToolServer) -> None:
    traffic = Traffic()
    async with undisturbed(), sessions(server, 2, traffic) as (one, other):
        pid = await pid_of(one)
        with pytest.raises(ToolServerDied):
            await one.call("crash", {})
        with pytest.raises(ToolServerDied):
            await other.call("add", {"a": 1, "b": 2})
        assert one.own_ends == []
        async with sessions(server, 1, traffic) as (later,):
            assert await pid_of(later) not in (pid, os.getpid())


async def test_a_call_of_a_tool_that_may_be_repeated_goes_to_the_next_process(server: ToolServer) -> None:
    repeatable = replace(server, idempotent_tools=frozenset({"echo"}))
    async with undisturbed(), sessions(repeatable, 2, Traffic()) as (one, other):
        before = await pid_of(one)
        with pytest.raises(ToolServerDied):
            await one.call("crash", {})
        assert (await other.call("echo", {"text": "still here"})).text == "still here"
        assert await pid_of(other) != before


async def test_a_process_that_answers_nothing_is_ended_for_all_and_replaced(server: ToolServer) -> None:
    traffic, limits = Traffic(), replace(LIMITS, open_s=5.0)
    async with sessions(server, 1, traffic) as (other,):
        pid = await pid_of(other)
        async with ToolSession([server], limits=limits, traffic=traffic) as one:
            with pytest.raises(ToolTimeout):
                await one.call("freeze", {"seconds": 3600.0}, timeout_s=0.5)
        await until_ended(pid)
        with pytest.raises(ToolServerDied):
            await other.call("echo", {"text": "hello"})
        async with sessions(server, 1, traffic) as (later,):
            assert await pid_of(later) != pid


async def test_a_slow_call_ends_no_process_that_still_answers(server: ToolServer) -> None:
    async with sessions(server, 2, Traffic()) as (one, other):
        pid = await pid_of(other)
        waiting = asyncio.create_task(other.call("slow", {"seconds": 1.0}))
        await until_slow(one, running=1)
        with pytest.raises(ToolTimeout):
            await one.call("slow", {"seconds": 3600.0}, timeout_s=0.2)
        assert (await waiting).text == "done"
        assert await pid_of(other) == pid


async def test_the_opening_goes_on_for_the_others_when_the_first_episode_is_cancelled(server: ToolServer) -> None:
    traffic = Traffic()
    first = ToolSession([server], limits=LIMITS, traffic=traffic)
    opening = asyncio.create_task(first.open())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        second = ToolSession([server], limits=LIMITS, traffic=traffic)
        opened = group.create_task(second.open())
        await asyncio.sleep(0.05)
        opening.cancel()
    await opened
    assert (await second.call("echo", {"text": "hello"})).text == "hello"
    pid = await pid_of(second)
    await second.close()
    await until_ended(pid)


async def test_a_cancelled_opening_that_nobody_shares_leaves_no_process(server: ToolServer) -> None:
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    session = ToolSession([server], limits=LIMITS, traffic=Traffic())
    opening = asyncio.create_task(session.open())
    async with asyncio.timeout(PATIENCE_S):
        while not {child.pid for child in psutil.Process().children(recursive=True)} - children:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with asyncio.timeout(PATIENCE_S):
        while {child.pid for child in psutil.Process().children(recursive=True)} - children:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_all_users_get_the_error_of_a_server_that_does_not_start(server: ToolServer) -> None:
    broken = replace(server, args=("-c", "import sys; sys.exit('no such table')"))
    opened = [ToolSession([broken], limits=LIMITS, traffic=Traffic()) for _ in range(3)]
    for outcome in await asyncio.gather(*(session.open() for session in opened), return_exceptions=True):
        assert "no such table" in str(outcome)


async def test_a_changed_list_of_tools_is_known_to_later_episodes(server: ToolServer) -> None:
    traffic, catalog = Traffic(), ToolCatalog()
    async with ToolSession([server], limits=LIMITS, traffic=traffic, catalog=catalog) as one:
        async with ToolSession([server], limits=LIMITS, traffic=traffic, catalog=catalog) as other:
            await other.call("grow", {})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with ToolSession([server], limits=LIMITS, traffic=traffic, catalog=catalog) as later:
                    if "grown_0" in [tool["function"]["name"] for tool in later.list_tools()]:
                        break
        assert "grown_0" not in [tool["function"]["name"] for tool in one.list_tools()]
