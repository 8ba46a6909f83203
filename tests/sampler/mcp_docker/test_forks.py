"""Bundled tools are forked from a process that has them loaded: as isolated as commands, and gone with their session."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from tests.sampler.mcp_docker.gateways import PATIENCE_S, RawClient, gateway, until_gone

pytestmark = pytest.mark.slow
BUNDLED = {
    name: {"command": sys.executable, "args": ["-m", f"sampler.mcp_docker.tools.{name}"]}
    for name in ("calculator", "files")
}


def told(answer: dict[str, object]) -> str:
    return str(answer["result"]["content"][0]["text"])  # type: ignore[index]


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
