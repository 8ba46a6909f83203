"""Our client against third-party MCP servers: over all their transports, killed, hanging, many at once.

Needs scripts/setup_mcp_servers.sh; without it every test here is skipped, and counted.
"""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from sampler.core.errors import ToolServerDied, ToolServerUnavailable, ToolTimeout
from sampler.core.tools import ToolCatalog, ToolLimits, ToolSession, parse_servers
from sampler.core.tools.traffic import Traffic
from shared.processes.mongod import free_port
from tests.sampler.foreign import FOREIGN, World, foreign_world, require
from tests.sampler.mcp_table import play

TRANSPORTS = FOREIGN["everything"].transports
LONG = "trigger-long-running-operation"
PATIENCE_S = 60.0  # limit on a slow machine for operations that are immediate on an idle one


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with foreign_world() as found:
        yield found


@pytest.mark.parametrize(
    ("name", "transport"), [(name, t) for name, foreign in FOREIGN.items() for t in foreign.transports]
)
async def test_a_public_server_gives_the_expected_answers(name: str, transport: str) -> None:
    require(name)
    with foreign_world() as fresh:
        num_tools, answers = await play(fresh, name, transport)
    assert num_tools >= len({case.tool for case in FOREIGN[name].cases})
    assert [(a.case.tool, a.text, a.is_error) for a in answers if not a.is_expected] == []


@pytest.mark.thorough
async def test_progress_extends_a_calls_time_out_and_silence_ends_it(world: World) -> None:
    """Over every transport, all at once: they wait. A report is due every 0.2 s; a busy machine may be late by 24."""
    require("everything")

    async def look(transport: str) -> None:
        with world.serve("everything", transport, tool_timeouts_s={LONG: 5.0}) as server:
            async with ToolSession([server]) as session:
                done = await session.call(LONG, {"duration": 7.0, "steps": 35})
                assert "Duration: 7 seconds" in done.text
                assert done.duration_s > 6.9
                with pytest.raises(ToolTimeout, match=r"no answer within 5 s"):
                    await session.call(LONG, {"duration": 600, "steps": 1})
                assert (await session.call("echo", {"message": "on"})).text == "Echo: on"

    await asyncio.gather(*map(look, TRANSPORTS))


async def test_no_progress_keeps_a_call_alive_beyond_the_longest_call(world: World) -> None:
    require("everything")
    limits = ToolLimits(max_call_s=0.8)
    async with ToolSession([world.stdio("everything")], limits=limits) as session:
        with pytest.raises(ToolTimeout):
            await session.call(LONG, {"duration": 20, "steps": 100})


async def test_images_are_stored_with_the_text_and_duplicate_structured_content_is_not(
    world: World,
) -> None:
    require("everything")
    async with ToolSession([world.stdio("everything")], limits=ToolLimits(max_raw_chars=5000)) as session:
        image = await session.call("get-tiny-image", {})
        structured = await session.call("get-structured-content", {"location": "Chicago"})
        plain = await session.call("echo", {"message": "x"})
    assert image.raw is not None
    block = json.loads(image.raw)["content"][1]
    assert (block["mimeType"], block["data"][:8]) == ("image/png", "iVBORw0K")
    assert re.search(r"\[\d+ more characters\]$", block["data"])
    assert json.loads(structured.text)["conditions"] == "Light rain / drizzle"
    assert (structured.raw, plain.raw) == (None, None)


@pytest.mark.parametrize("transport", ["stdio", "sse"])  # over HTTP this server announces before a client can listen
async def test_the_next_episode_requests_a_changed_tool_list_again(world: World, transport: str) -> None:
    require("everything")
    catalog = ToolCatalog()
    with world.serve("everything", transport) as server:
        # This server registers more tools after the handshake, and announces that.
        async with ToolSession([server], catalog=catalog) as session:
            connection = session._links[0]._connection
            async with asyncio.timeout(PATIENCE_S):
                while not connection.num_list_changes:  # noqa: ASYNC110 - a number has no event
                    await asyncio.sleep(0.02)
            before = session.list_tools()
            connection.on_list_changed()
            assert catalog._lists == {}
            assert session.list_tools() == before
        async with ToolSession([server], catalog=catalog) as later:
            assert len(later.list_tools()) == 12


async def test_a_tool_that_runs_only_as_a_background_task_is_not_offered(world: World) -> None:
    require("everything")
    async with ToolSession([world.stdio("everything")]) as session:
        assert "simulate-research-query" not in {schema["function"]["name"] for schema in session.list_tools()}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_server_that_exits_during_a_call_is_an_infrastructure_failure(world: World, transport: str) -> None:
    require("everything")
    with world.serve("everything", transport) as server:
        async with ToolSession([server], limits=ToolLimits(max_retries=0)) as session:
            call = asyncio.create_task(session.call(LONG, {"duration": 600, "steps": 2}))
            await asyncio.sleep(0.5)
            kill_server(world, transport)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(ToolServerDied, match="everything"):
                    await call
                with pytest.raises((ToolServerDied, ToolServerUnavailable)):
                    await session.call("echo", {"message": "again"})
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("transport", ["sse", "http"])
async def test_only_an_idempotent_call_is_repeated_and_only_in_an_untouched_session(
    world: World, transport: str
) -> None:
    require("everything")
    port = free_port()
    limits = ToolLimits(retry_delay_s=0.1)
    with world.serve("everything", transport, port) as server:
        clean, touched = (
            ToolSession([server], limits=limits, traffic=Traffic(patience_s=PATIENCE_S)) for _ in range(2)
        )
        await clean.open()
        await touched.open()
        await touched.call("toggle-simulated-logging", {})
    with world.serve("everything", transport, port):
        echoes = await asyncio.gather(*(clean.call("echo", {"message": str(n)}) for n in range(3)))
        assert [echo.text for echo in echoes] == ["Echo: 0", "Echo: 1", "Echo: 2"]
        assert all(echo.retries == 1 for echo in echoes)
        with pytest.raises(ToolServerDied):
            await touched.call("echo", {"message": "x"})
        assert (await clean.call("toggle-simulated-logging", {})).retries == 0
    with world.serve("everything", transport, port):
        with pytest.raises(ToolServerDied):
            await clean.call("toggle-simulated-logging", {})
        await clean.close()
        await touched.close()


async def test_a_server_that_stops_answering_is_a_time_out_and_is_ended(world: World) -> None:
    require("memory")
    limits = ToolLimits(close_s=1)
    async with ToolSession([world.stdio("memory")], limits=limits) as session:
        assert not (await session.call("read_graph", {})).is_error
        (process,) = child_processes("server-memory")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(ToolTimeout, match=r"memory.*0\.5 s"):
            await session.call("read_graph", {}, timeout_s=0.5)
    await asyncio.to_thread(process.wait, PATIENCE_S)  # stdin closed, SIGTERM, SIGKILL
    ends = [task for task in asyncio.all_tasks() if task.get_name().startswith("end of ")]
    await asyncio.wait_for(asyncio.gather(*ends), PATIENCE_S)  # which the session abandoned at its time limit


@pytest.mark.parametrize("transport", ["sse", "http"])
async def test_fifty_sessions_at_once_get_their_own_answers(world: World, transport: str) -> None:
    require("everything")
    catalog, limits = ToolCatalog(), ToolLimits(open_s=150, close_s=PATIENCE_S)
    with world.serve("everything", transport) as server:

        async def episode(number: int) -> list[str]:
            async with ToolSession([server], catalog=catalog, limits=limits) as session:
                calls = (session.call("get-sum", {"a": number, "b": turn}, timeout_s=60) for turn in range(3))
                return [result.text.split()[-1] for result in await asyncio.gather(*calls)]

        answers = await asyncio.gather(*(episode(number) for number in range(50)))
    assert answers == [[f"{n}.", f"{n + 1}.", f"{n + 2}."] for n in range(50)]


async def test_several_servers_of_one_file_prefixes_and_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    require("everything", "filesystem", "time")
    monkeypatch.setenv("DATA_DIR", str(world.root))
    files, clock = world.stdio("filesystem"), world.stdio("time")
    with world.serve("everything", "http") as remote:
        entry = {"command": files.command, "args": [files.args[0], "${DATA_DIR}"]}
        config = {
            "left": entry,
            "right": {**entry, "timeout_s": 20},
            "clock": {"command": clock.command},
            "all": {"url": remote.url, "type": "streamable-http"},
        }
        servers = parse_servers({"mcpServers": config})
        exclude = ["left.write_*", "*_edit_file", "get-env"]
        async with ToolSession(servers, exclude=exclude) as session:
            names = {schema["function"]["name"] for schema in session.list_tools()}
            assert {"left_read_text_file", "right_read_text_file", "right_write_file", "convert_time", "echo"} <= names
            assert not {"read_text_file", "left_write_file", "left_edit_file", "right_edit_file", "get-env"} & names
            path = f"{world.root}/notes.txt"
            assert (await session.call("right_read_text_file", {"path": path})).text.startswith("first line")
            refused = await session.call("left_write_file", {"path": path, "content": "no"})
            assert refused.is_error
            assert "unknown tool" in refused.text
        async with ToolSession(servers, ["left.read_*", "echo"], exclude=["*media*"]) as session:
            names = {schema["function"]["name"] for schema in session.list_tools()}
            assert names == {"left_read_file", "left_read_text_file", "left_read_multiple_files", "echo"}


def child_processes(part_of_command: str) -> list[psutil.Process]:
    """Without the guard of each, whose command line ends with that of the server it started."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one of an earlier test, gone meanwhile
            found += [child] if any(part_of_command in word for word in child.cmdline()) else []
    guards = {process.ppid() for process in found}
    return [process for process in found if process.pid not in guards]


def kill_server(world: World, transport: str) -> None:
    if transport == "stdio":
        (process,) = child_processes("server-everything")
        process.kill()
    else:
        world.processes[-1].kill()
