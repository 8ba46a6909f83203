"""A call that ends its own tool server's process is the model's act: it is told, and a new process starts.

Guide: docs/inside/whose_act.md.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sampler.core.episode.episode import play
from sampler.core.episode.tools import MAX_RESTARTS
from sampler.core.errors import ToolServerDied
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.tools import ToolLimits, ToolServer, ToolSession, Traffic
from shared.documents.states import RecordStatus, Termination
from shared.sandbox import IsolationLevel
from shared.store import Store
from tests.sampler.mcp_docker.gateways import gateway
from tests.sampler.test_mcp_sampler import NO_AGENTS, calls, resources
from tests.sampler.test_tool_processes import shell
from tests.shared.builders import claim, import_tasks
from tests.shared.sandbox.starting import needs

LIMITS = ToolLimits(max_restarts=2)
KILLS = "kill -9 $PPID"
BUNDLED = {
    name: {"command": sys.executable, "args": ["-m", f"sampler.mcp_docker.tools.{name}"]}
    for name in ("shell", "python")
}


async def pid_of(session: ToolSession) -> int:
    return int((await session.call("run", {"command": "echo $PPID"})).text)


async def test_a_call_that_ends_its_server_is_told_and_the_next_one_has_a_new_process() -> None:
    async with ToolSession([shell()], limits=LIMITS) as session:
        before = await pid_of(session)
        ended = await session.call("run", {"command": KILLS})
        assert ended.is_error
        assert ended.text.startswith("Your call ended the tool's process: was ended by signal 9")
        assert "Its state is lost; a new process was started." in ended.text
        assert await pid_of(session) != before
        assert (await session.call("exit", {"status": 3})).text.startswith(
            "Your call ended the tool's process: ended with status 3"
        )
        assert len(session.own_ends) == 2


async def test_a_server_is_started_again_only_so_often_and_then_its_calls_are_errors() -> None:
    async with ToolSession([shell()], limits=LIMITS) as session:
        for _ in range(LIMITS.max_restarts):
            assert "a new process was started" in (await session.call("run", {"command": KILLS})).text
        last = await session.call("run", {"command": KILLS})
        assert "It has ended 3 times in this episode, and is not started again." in last.text
        after = await session.call("run", {"command": "echo hi"})
        assert after.is_error
        assert "not started again" in after.text
        assert len(session.own_ends) == LIMITS.max_restarts + 1


async def test_a_process_that_ends_after_a_call_is_told_with_the_next_one() -> None:
    async with ToolSession([shell()], limits=LIMITS) as session:
        process = await pid_of(session)
        await session.call("run", {"command": "echo hi"})
        os.kill(process, signal.SIGKILL)
        connection = session._links[0]._connection
        while not connection._end:  # type: ignore[union-attr]  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.02)
        told = await session.call("run", {"command": "echo hi"})
        assert "has ended since your last call" in told.text
        assert (await session.call("run", {"command": "echo hi"})).text == "hi\n"


async def test_processes_that_end_together_are_the_machines_failure() -> None:
    traffic = Traffic()
    sessions = [ToolSession([shell()], limits=LIMITS, traffic=traffic) for _ in range(4)]
    await asyncio.gather(*(session.open() for session in sessions))
    try:
        processes = [await pid_of(session) for session in sessions]
        calls = [asyncio.ensure_future(session.call("run", {"command": "sleep 600"})) for session in sessions]
        await asyncio.sleep(0.5)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, ToolServerDied) for one in ended), ended
    finally:
        await asyncio.gather(*(session.close() for session in sessions))


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    with gateway(tmp_path_factory.mktemp("gateway"), BUNDLED, "--warm_sessions", "0") as started:
        yield started.server


FILLS = "for i in $(seq 100); do head -c 1000000 /dev/zero > file$i; done; sleep 30"
COMPUTES = "for i in 1 2 3; do python3 -c 'while True: pass' & done; wait"  # each less than all may


async def exceeding(folder: Path, level: IsolationLevel, command: str) -> str:
    """The answer to the command."""
    limits = ("--isolation", level.value, "--limits.folder_mb", "16", "--limits.cpu_s", "5")
    with gateway(folder, {"shell": BUNDLED["shell"]}, "--warm_sessions", "0", *limits) as started:
        async with ToolSession([started.server], limits=LIMITS) as session:
            ended = await session.call("run", {"command": command, "timeout_s": 60})
    assert ended.is_error, ended
    assert ended.text.endswith("Its state is lost; a new process was started.")
    return ended.text


@pytest.mark.slow
@pytest.mark.parametrize(("command", "limit"), [(FILLS, "folder_mb"), (COMPUTES, "cpu_s")])
async def test_the_limit_that_a_call_exceeded_is_named(tmp_path: Path, command: str, limit: str) -> None:
    answer = await exceeding(tmp_path, IsolationLevel.PROCESS, command)
    assert answer.startswith(f"Your call ended the tool's process: exceeded its limit {limit}: ")


@pytest.mark.slow
async def test_the_limit_that_a_call_exceeded_in_bubblewrap_is_named(tmp_path: Path) -> None:
    needs(IsolationLevel.BUBBLEWRAP)
    answer = await exceeding(tmp_path, IsolationLevel.BUBBLEWRAP, FILLS)
    assert answer.startswith("Your call ended the tool's process: exceeded its limit folder_mb: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "ends", "works"),
    [
        ("shell_run", {"command": KILLS}, {"command": "echo 7"}),
        ("python_run", {"code": "import os; os.kill(-1, 9)"}, {"code": "7"}),
        ("python_run", {"code": "import os; os.kill(os.getppid(), 9)"}, {"code": "7"}),
    ],
)
async def test_mcp_dockers_session_ends_by_its_call_and_a_new_one_begins(
    docker: ToolServer, tool: str, ends: dict[str, str], works: dict[str, str]
) -> None:
    async with ToolSession([docker], limits=LIMITS) as session:
        ended = await session.call(tool, ends)
        assert ended.text.startswith("Your call ended the tool's process: was ended by signal 9"), ended
        assert (await session.call(tool, works)).text.startswith("7")


@pytest.mark.slow
async def test_a_gateway_that_is_gone_is_no_act_of_the_model(tmp_path: Path) -> None:
    with gateway(tmp_path, BUNDLED, "--warm_sessions", "0") as started:
        async with ToolSession([started.server], limits=LIMITS) as session:
            call = asyncio.ensure_future(session.call("shell_run", {"command": "sleep 600"}))
            await asyncio.sleep(1)
            started.process.kill()
            with pytest.raises(ToolServerDied):
                await call


async def test_an_episode_that_ended_its_tools_process_goes_on_and_is_scored(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    replies = [calls("crash"), calls("add", a=2, b=2), "<answer>4</answer>"]
    got = await claim(store)
    async with resources(store, replies, NO_AGENTS) as (shared, _):
        assert await play(MCPSampler(shared, got)) == 1.0
    record = await store.records.get(got.record_id)
    assert record is not None
    assert (record.status, record.termination) == (RecordStatus.SCORED, Termination.ANSWERED)
    assert (record.metrics["act_tool_ended"], record.metrics["tool_processes_ended"]) == (1, 1)
    first = (await store.records.dispatches_of([got.record_id]))[got.record_id][0]
    assert "Your call ended the tool's process" in first.tool_calls[0].result
    assert MAX_RESTARTS >= 1
