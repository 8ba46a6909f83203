"""One endpoint, tool processes per session: isolation, ends, leases, tokens, and wrong settings."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sampler.core.errors import ToolServerDied
from sampler.core.tools import ToolSession
from tests.sampler.mcp_docker.gateways import (
    ACCEPT,
    PATIENCE_S,
    ROOT,
    TOKEN,
    Gateway,
    RawClient,
    box,
    gateway,
    until_gone,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("shared"), {**box("left"), **box("right")}, token=TOKEN) as started:
        yield started


async def bump(session: ToolSession, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((await session.call(name, {})).text)
    return answer


async def test_every_session_has_processes_of_its_own_for_every_server(shared: Gateway) -> None:
    async with ToolSession([shared.server]) as a, ToolSession([shared.server]) as b:
        answers = [await bump(s, name) for s in (a, b, a) for name in ("left_bump", "right_bump")]
    assert [answer["n"] for answer in answers] == [1, 1, 1, 1, 2, 2]
    assert len({answer["pid"] for answer in answers}) == 4


async def test_a_session_that_its_client_ends_leaves_no_process_and_no_folder(shared: Gateway) -> None:
    await shared.until(sessions=0, ending=0, warm=2, starting=0)
    client = RawClient(shared)
    await client.open()
    pid = json.loads((await client.call("left_bump"))["result"]["content"][0]["text"])["pid"]
    assert pid in {process.pid for process in shared.tools()}
    assert await client.close() == 200
    assert pid not in {process.pid for process in shared.tools()}
    assert not psutil.pid_exists(pid)
    await shared.until(sessions=0, ending=0, warm=2, starting=0)
    assert len(shared.folders) == 2


async def test_a_session_is_unknown_after_its_end(shared: Gateway) -> None:
    client, other = RawClient(shared), RawClient(shared)
    await client.open()
    other.headers = dict(client.headers)
    await client.close()
    assert (await other.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404
    del other.headers["Mcp-Session-Id"]
    assert (await other.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 400
    await other.http.aclose()


async def test_a_name_of_two_servers_is_prefixed_and_a_unique_one_is_kept(tmp_path: Path, shared: Gateway) -> None:
    async with ToolSession([shared.server]) as session:
        names = {tool["function"]["name"] for tool in session.list_tools()}
        assert {"left_echo", "right_echo"} <= names
        assert "echo" not in names
    with gateway(tmp_path) as alone:
        async with ToolSession([alone.server]) as session:
            assert (await session.call("echo", {"text": "é ✓"})).text == "é ✓"


async def test_only_the_right_token_is_served(shared: Gateway) -> None:
    async with httpx.AsyncClient(base_url=shared.url) as http:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            for path in ("/mcp", "/mcpapi/tools", "/metrics", "/elsewhere"):
                assert (await http.post(path, headers=header, content=b"{}")).status_code == 401
        told = await http.get("/health")
    assert told.status_code == 200
    assert told.json()["status"] == "ok"
    assert TOKEN not in told.text


async def test_a_web_page_of_a_foreign_origin_is_refused(shared: Gateway) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": ACCEPT}
    async with httpx.AsyncClient(base_url=shared.url) as http:
        for wrong in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
            assert (await http.post("/mcp", headers=headers | wrong, content=b"{}")).status_code == 403
        local = await http.post("/mcp", headers=headers | {"Origin": "http://localhost:6274"}, content=b"{}")
    assert local.status_code == 400


@pytest.mark.thorough
async def test_a_silent_session_ends_with_its_lease_and_a_busy_one_does_not(tmp_path: Path) -> None:
    with gateway(tmp_path, None, "--lease_s", "8", "--warm_sessions", "0") as started:
        silent, busy = RawClient(started), RawClient(started)
        await silent.open()
        await busy.open()
        slow = asyncio.create_task(busy.call("slow", seconds=12))
        await started.until(sessions=1, ending=0)
        assert (await slow)["result"]["content"][0]["text"] == "done"
        await started.until(sessions=0, ending=0)
        assert started.folders == []
        assert (await silent.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code == 404
        for client in (silent, busy):
            await client.http.aclose()


KILLED = """
import asyncio, sys
from sampler.core.tools import ToolSession, parse_servers
async def main():
    async with ToolSession(parse_servers(sys.argv[1])) as session:
        print("open", flush=True)
        await session.call("slow", {"seconds": 600})
asyncio.run(main())
"""


async def test_a_killed_client_leaves_nothing_after_the_time_for_broken_connections(tmp_path: Path) -> None:
    with gateway(tmp_path, None, "--broken_s", "1", "--warm_sessions", "0") as started:
        command = [sys.executable, "-c", KILLED, f"{started.url}/mcp"]
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
        assert client.stdout is not None
        assert await client.stdout.readline() == b"open\n"
        await started.until_in_flight(1)
        tools = started.tools()
        assert tools
        client.kill()
        await client.wait()
        await started.until(sessions=0, ending=0)
        await until_gone(tools)
        assert started.folders == []


async def test_a_killed_gateway_leaves_no_process_and_the_next_one_removes_the_folders(tmp_path: Path) -> None:
    with gateway(tmp_path) as first:
        client = RawClient(first)
        await client.open()
        tools = first.tools()
        assert tools
        first.kill()
        await until_gone(tools)
        await client.http.aclose()
    with gateway(tmp_path, None, "--warm_sessions", "0") as second:
        assert second.folders == []


async def test_sigterm_lets_calls_end_and_leaves_nothing(tmp_path: Path) -> None:
    with gateway(tmp_path) as started:
        client = RawClient(started)
        await client.open()
        call = asyncio.create_task(client.call("slow", seconds=3))
        await started.until_in_flight(1)
        tools = started.tools()
        started.process.send_signal(signal.SIGTERM)
        assert (await call)["result"]["content"][0]["text"] == "done"
        assert await asyncio.to_thread(started.process.wait, PATIENCE_S) == 0
        await until_gone(tools)
        assert started.folders == []
        await client.http.aclose()


async def test_a_server_that_ends_is_a_failure_of_infrastructure_and_the_others_go_on(shared: Gateway) -> None:
    async with ToolSession([shared.server]) as session:
        with pytest.raises(ToolServerDied, match="left"):
            await session.call("left_crash", {})
        with pytest.raises(ToolServerDied, match="its process ended with status 3"):
            await session.call("left_echo", {"text": "again"})
        assert (await session.call("right_echo", {"text": "here"})).text == "here"


async def test_a_server_that_does_not_start_is_named_with_its_stderr(tmp_path: Path) -> None:
    broken = {"broken": {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no such library')"]}}
    with gateway(tmp_path, broken, "--warm_sessions", "0") as started:
        client = RawClient(started)
        response = await client.open()
        assert response.status_code == 502
        assert "'broken'" in response.text
        assert "no such library" in response.text
        assert (await client.http.get("/health")).status_code == 503
        await client.http.aclose()


@pytest.mark.parametrize(
    ("content", "flags", "words"),
    [
        ("{", [], "servers.json"),
        ('{"servers": {}}', [], 'expected {"mcpServers"'),
        ('{"mcpServers": {}}', [], "has no servers"),
        ('{"mcpServers": {"a": {"cmd": "x"}}}', [], '\'a\': expected exactly one of "url" and "command"'),
        (
            '{"mcpServers": {"a": {"command": "no-such-program"}}}',
            [],
            "'a': command is 'no-such-program', which is not on",
        ),
        ('{"mcpServers": {"a": {"url": "http://h/mcpapi"}}}', [], "'a': mcpapi is not MCP"),
        ('{"mcpServers": {"a": {"command": "sh", "shared": true}}}', [], "'a': shared is true; here every session has"),
        ('{"mcpServers": {"a": {"command": "true"}}}', ["--network_servers", "b"], "network_servers: 'b' is no server"),
        ('{"mcpServers": {"a": {"command": "true"}}}', ["--host", "0.0.0.0"], "without a token"),
        ('{"mcpServers": {"a": {"command": "true"}}}', ["--token_file", "/dev/null"], "has no token"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(tmp_path: Path, content: str, flags: list[str], words: str) -> None:
    (path := tmp_path / "servers.json").write_text(content)
    command = [sys.executable, "-m", "sampler.mcp_docker", "--servers", str(path), "--port", "0", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_token_is_hidden_from_other_processes(shared: Gateway) -> None:
    files = [Path(f"/proc/{shared.process.pid}/{name}") for name in ("cmdline", "environ")]
    files += [Path(f"/proc/{tool.pid}/environ") for tool in shared.tools()]
    for file in files:
        with contextlib.suppress(PermissionError, FileNotFoundError):  # hidden, unless from root; a tool that has ended
            assert TOKEN.encode() not in file.read_bytes()
    assert TOKEN.encode() not in files[0].read_bytes()
