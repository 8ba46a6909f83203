"""Servers behind the gateway that are not plain processes: remote ones, given by a URL, and processes in bubblewrap."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import MCPError
from mcp_types import ElicitResult

from sampler.core.errors import ToolServerDied
from sampler.core.tools import ToolSession
from shared.processes.mongod import free_port
from shared.sandbox import IsolationLevel
from tests.sampler.mcp_docker.gateways import PATIENCE_S, ROOT, box, gateway, until_gone, until_running
from tests.sampler.mcp_docker.test_gateway_protocol import TALKER, client, text, until_told
from tests.shared.sandbox.starting import needs

pytestmark = pytest.mark.slow


class Remote:
    """The talker over streamable HTTP; `log`: of its requests."""

    def __init__(self, folder: Path) -> None:
        self.port, self.log = free_port(), folder / "remote.log"
        command = [sys.executable, str(TALKER), "far", str(self.port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def servers(self) -> dict[str, Any]:
        return {"far": {"url": f"http://127.0.0.1:{self.port}/mcp"}}

    def ended_sessions(self) -> int:
        return len(re.findall(r'"DELETE /mcp HTTP/1.1" 200', self.log.read_text()))

    async def until_up(self) -> None:
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as http:
            while self.process.poll() is None:
                try:
                    await http.get(f"http://127.0.0.1:{self.port}/mcp")
                except httpx.HTTPError:
                    await asyncio.sleep(0.2)
                else:
                    return
        raise AssertionError(self.log.read_text())

    async def until_ended(self, sessions: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.ended_sessions() < sessions:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    started = Remote(tmp_path)
    yield started
    started.end()


async def test_a_remote_server_has_a_session_for_each_of_the_gateways(tmp_path: Path, remote: Remote) -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"age": 7})

    await remote.until_up()
    with gateway(tmp_path, remote.servers, "--warm_sessions", "0") as started:
        async with client(started, elicitation_callback=elicit) as asking, client(started) as mute:
            steps: list[float] = []

            async def on_progress(progress: float, total: float | None, message: str | None) -> None:
                steps.append(progress)

            counted = await asking.call_tool("count_up", {"steps": 3}, progress_callback=on_progress)
            assert (text(counted), steps) == ("3 steps", [1, 2, 3])
            assert text(await asking.call_tool("ask_user", {})) == "far: accept age=7"
            with pytest.raises(MCPError, match="does not serve elicitation/create"):
                await mute.call_tool("ask_user", {})
            call = asyncio.create_task(asking.call_tool("wait", {"seconds": 600}))
            await until_told(asking, "waits", "1")
            call.cancel()
            await until_told(asking, "cancellations", "1")
            assert (await mute.read_resource("note://far/one")).contents[0].text == "note of far"
        await remote.until_ended(2)
        await started.until(sessions=0, ending=0)


async def test_a_remote_server_that_ends_is_a_failure_of_infrastructure(tmp_path: Path, remote: Remote) -> None:
    await remote.until_up()
    with gateway(tmp_path, remote.servers, "--warm_sessions", "0") as started:
        async with ToolSession([started.server]) as session:
            assert (await session.call("only_far", {})).text == "far"
            slow = asyncio.create_task(session.call("wait", {"seconds": 600}))
            await started.until_in_flight(1)
            remote.end()
            with pytest.raises(ToolServerDied, match="far"):
                await slow
            with pytest.raises(ToolServerDied, match="far"):
                await session.call("only_far", {})


SHELL = {"shell": {"command": sys.executable, "args": ["-m", "sampler.mcp_docker.tools.shell"]}}


async def run(session: ToolSession, command: str) -> str:
    return (await session.call("run", {"command": command})).text


async def test_bubblewrap_shows_a_session_its_own_folder_and_processes_alone(tmp_path: Path) -> None:
    needs(IsolationLevel.BUBBLEWRAP)
    with gateway(tmp_path, {**SHELL, **box()}, "--warm_sessions", "0", level="bubblewrap") as started:
        assert (await started.health())["isolation"] == "bubblewrap"
        async with ToolSession([started.server]) as a, ToolSession([started.server]) as b:
            assert "secret of a" in await run(a, "echo secret of a > mine; cat mine")
            assert "No such file" in await run(b, "cat mine")
            assert len(started.folders) == 2
            seen = (
                await run(b, f"ls -d {started.folder}/* /proc/[0-9]*; touch {ROOT}/tests/x || echo refused")
            ).split()
            assert len({str(folder) for folder in started.folders} & set(seen)) == 1, "its own, not the other's"
            assert not {f"/proc/{process.pid}" for process in (started.process, *started.tools())} & set(seen)
            assert "refused" in seen
            assert json.loads((await a.call("bump", {})).text)["n"] == 1
            tools = started.tools()
        await started.until(sessions=0, ending=0)
        await until_gone([tool for tool in tools if tool.is_running()])
        assert started.folders == []


async def test_a_killed_gateway_leaves_nothing_in_bubblewrap(tmp_path: Path) -> None:
    needs(IsolationLevel.BUBBLEWRAP)
    with gateway(tmp_path, SHELL, "--warm_sessions", "0", level="bubblewrap") as first:
        async with ToolSession([first.server]) as session:
            await run(
                session, "setsid sleep 3600 >/dev/null 2>&1 & (trap '' TERM HUP; exec sleep 3601) >/dev/null 2>&1 &"
            )
            tools = await until_running(first, "3600", "3601")
            first.kill()
            await until_gone(tools)
    with gateway(tmp_path, SHELL, "--warm_sessions", "0", level="bubblewrap") as second:
        assert second.folders == []


def test_a_level_that_does_not_work_is_refused_with_the_reason(tmp_path: Path) -> None:
    """`container` without an engine."""
    (path := tmp_path / "servers.json").write_text(json.dumps({"mcpServers": SHELL}))
    command = [sys.executable, "-m", "sampler.mcp_docker", "--servers", str(path), "--isolation", "container"]
    environment = {"PATH": "/nowhere"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode != 0
    assert "container" in ended.stderr
    assert "Traceback" not in ended.stderr
