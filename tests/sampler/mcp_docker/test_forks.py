"""Bundled tools are forked from a process that has them loaded: as isolated as commands, and gone with their session."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from sampler.mcp_docker.links.channel import StdioChannel
from sampler.mcp_docker.links.server_link import ServerLink
from sampler.mcp_docker.starting import tool_set
from sampler.mcp_docker.starting.tool_set import Profile, ToolSet
from sampler.mcp_docker.tools.forked import loaded_tools
from shared.forks.processes import ForkServer
from shared.sandbox import IsolationLevel, Launch
from tests.sampler.mcp_docker.gateways import PATIENCE_S, ROOT, RawClient, gateway, until_gone, until_running

pytestmark = pytest.mark.slow
BUNDLED = {
    name: {"command": sys.executable, "args": ["-m", f"sampler.mcp_docker.tools.{name}"]}
    for name in ("calculator", "files")
}


def told(answer: dict[str, object]) -> str:
    return str(answer["result"]["content"][0]["text"])  # type: ignore[index]  # an answer has it


async def test_forked_tools_have_a_folder_per_session_and_end_with_it_and_with_a_killed_gateway(tmp_path: Path) -> None:
    with gateway(tmp_path, BUNDLED, "--warm_sessions", "0") as started:
        assert len(started.tools()) == 1, "the process that forks"
        ann, bob = RawClient(started), RawClient(started)
        await ann.open()
        await bob.open()
        commands = {tuple(process.cmdline()) for process in started.tools()}
        assert len(commands) == 1, "forks of one process, not commands of their own"
        assert len(started.tools()) == 1 + 2 * (
            2 + 1
        )  # of two sessions: files with its warden; the calculator needs none
        assert told(await ann.call("calculate", expression="2**10 + 1/4")).startswith("4097/4")
        await ann.call("write", path="note.txt", content="of ann")
        assert "note.txt" in told(await ann.call("list"))
        assert "note.txt" not in told(await bob.call("list"))
        assert await ann.close() == 200
        assert len(started.tools()) == 1 + 2 + 1
        left = started.tools()
        started.kill()
        await until_gone(left)
        await bob.http.aclose()


async def test_sessions_begin_again_after_the_process_that_forks_was_killed(tmp_path: Path) -> None:
    with gateway(tmp_path, BUNDLED, "--warm_sessions", "0") as started:
        client = RawClient(started)
        await client.open()
        started.process.poll()
        (forking,) = psutil.Process(started.process.pid).children()
        forking.kill()
        async with asyncio.timeout(PATIENCE_S):
            while "result" in await client.call("calculate", expression="1"):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        await client.close()
        again = RawClient(started)
        assert (await again.open()).status_code == 200
        assert told(await again.call("calculate", expression="6*7")) == "42"
        await again.close()


async def test_an_end_that_hangs_is_told_and_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process that forks stands still: nothing tells that the fork has ended."""
    monkeypatch.setattr(tool_set, "MAX_END_S", 1.0)
    entry = BUNDLED["calculator"]
    command = (entry["command"], *entry["args"])
    state = tmp_path / "state"
    forks = ForkServer(loaded_tools([command[2]]), state, [ROOT])
    await forks.open()

    def links(folder: Path) -> list[ServerLink]:
        return [ServerLink("slow", StdioChannel(Launch(command, folder), IsolationLevel.PROCESS, 1_000_000, forks))]

    used = ToolSet(Profile(), links, state)
    try:
        await used.open(PATIENCE_S)
        assert forks._process is not None
        os.kill(forks._process.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await used.close()
        finally:
            os.kill(forks._process.pid, signal.SIGCONT)
        assert "tool server 'slow' has not ended within 1 s" in caplog.text
        assert used.folder is not None
        assert used.folder.exists(), "of a user that may still have processes"
        async with asyncio.timeout(PATIENCE_S):
            while tool_set._hanging:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        assert not used.folder.exists(), "when the end is done"
    finally:
        await forks.close()


class CancelledLink:
    name, told, gone = "cancelled", "", ""

    async def open(self, capabilities: object) -> None:
        pass

    async def close(self) -> None:
        raise asyncio.CancelledError


async def test_an_end_that_was_cancelled_is_told_and_leaves_no_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    used = ToolSet(Profile(), lambda folder: [CancelledLink()], tmp_path)  # type: ignore[list-item]  # a stand-in
    await used.open(PATIENCE_S)
    assert used.folder is not None
    await used.close()
    assert "tool server 'cancelled': its end was cancelled" in caplog.text
    assert not used.folder.exists()


async def test_a_warden_that_stands_still_leaves_no_process(tmp_path: Path) -> None:
    """It is killed, and with it what would have ended the others."""
    shell = {"shell": {"command": sys.executable, "args": ["-m", "sampler.mcp_docker.tools.shell"]}}
    with gateway(tmp_path, shell, "--warm_sessions", "0") as started:
        (forking,) = started.tools()
        client = RawClient(started)
        await client.open()
        assert "result" in await client.call("run", command="setsid sleep 3600 >/dev/null 2>&1 &")
        inside = [process for process in await until_running(started, "3600") if process != forking]
        for warden in forking.children():
            warden.suspend()
        assert await client.close() == 200
        await until_gone(inside)
        await started.until(sessions=0, ending=0)
        assert started.folders == []
