"""The older manager protocol, against a faithful manager of real MCP servers in child processes."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sampler.core.errors import ToolServerDied, ToolServerUnavailable, ToolTimeout
from sampler.core.tools import ToolLimits, ToolServer, ToolSession, parse_servers
from tests.sampler.boxes import SERVERS
from tests.sampler.foreign import FOREIGN, foreign_world, require


@dataclass
class Manager:
    process: subprocess.Popen[str]
    url: str

    @property
    def server(self) -> ToolServer:
        (server,) = parse_servers(self.url)
        return server

    def servers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@contextlib.contextmanager
def manager(folder: Path, servers: Mapping[str, ToolServer], **environment: str) -> Iterator[Manager]:
    entries = {
        name: {"command": server.command, "args": list(server.args), "env": dict(server.env)}
        for name, server in servers.items()
    }
    path = folder / "servers.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    command = [sys.executable, str(SERVERS / "manager.py"), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stdout is not None
    port = int(process.stdout.readline())
    process.stdout.close()
    try:
        yield Manager(process, f"http://127.0.0.1:{port}/mcpapi")
    finally:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # its input has ended, and so may it have
                child.kill()


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    box = ToolServer(name="box", command=sys.executable, args=(str(SERVERS / "box.py"), "stdio"))
    with manager(tmp_path_factory.mktemp("manager"), {"left": box, "right-box": box}) as found:
        yield found


def test_the_urls_ending_selects_the_protocol() -> None:
    ends = {
        "/mcp": "http",
        "/mcpapi": "mcpapi",
        "/container/ab12/mcpapi/": "mcpapi",
        "/sse": "sse",
        "/mcpapi?x=1": "mcpapi",
    }
    for end, transport in ends.items():
        (server,) = parse_servers({"mcpServers": {"s": {"url": f"http://h:1{end}"}}})
        assert server.transport == transport
    assert parse_servers("http://h:1/mcpapi")[0].transport == "mcpapi"
    entry = {"mcpServers": {"s": {"url": "http://h/tools", "type": "mcpapi"}}}
    assert parse_servers(entry)[0].transport == "mcpapi"


async def test_a_query_of_the_managers_url_is_sent_with_every_request(boxes: Manager) -> None:
    (server,) = parse_servers({"mcpServers": {"m": {"url": f"{boxes.url}/?key=1"}}})
    async with ToolSession([server], ["left.add"]) as session:
        (shown,) = [tool["function"]["name"] for tool in session.list_tools()]
        assert not (await session.call(shown, {"a": 2, "b": 3})).is_error


async def test_a_manager_offers_the_tools_of_all_its_servers(boxes: Manager) -> None:
    async with ToolSession([boxes.server], exclude=["right-box.crash", "*_slow"]) as session:
        schemas = {schema["function"]["name"]: schema["function"] for schema in session.list_tools()}
        assert {"left_echo", "right_box_echo", "left_crash"} <= schemas.keys()
        assert not {"echo", "right_box_crash", "left_slow"} & schemas.keys()
        assert schemas["left_add"]["description"] == "The sum."
        assert set(schemas["left_add"]["parameters"]["properties"]) == {"a", "b"}
        pids = {json.loads((await session.call(f"{name}_bump", {})).text)["pid"] for name in ("left", "right_box")}
    assert len(pids) == 2


async def test_errors_about_arguments_are_answers(boxes: Manager) -> None:
    async with ToolSession([boxes.server]) as session:
        wrong = await session.call("left_add", {"a": "x", "b": 1})
        refused = await session.call("left_refuse", {"reason": "bad move"})
        listed = await session.call("left_echo", {"text": '[1, {"é": null}]'})
        unicode = await session.call("left_echo", {"text": "a/b.c?d=é"})
    assert wrong.is_error
    assert "'x' is not of type 'integer'" in wrong.text
    assert "bad move" in refused.text  # the protocol drops isError
    assert json.loads(listed.text) == [1, {"é": None}]
    assert unicode.text == "a/b.c?d=é"


async def test_a_hanging_tool_times_out_and_the_manager_continues(boxes: Manager) -> None:
    async with ToolSession([boxes.server]) as session:
        with pytest.raises(ToolTimeout, match=r"left\.slow: no answer within 0\.3 s"):
            await session.call("left_slow", {"seconds": 30}, timeout_s=0.3)
        assert (await session.call("left_echo", {"text": "still here"})).text == "still here"


async def test_a_server_that_exits_behind_a_manager_is_an_infrastructure_failure(tmp_path: Path) -> None:
    box = ToolServer(name="box", command=sys.executable, args=(str(SERVERS / "box.py"), "stdio"))
    with manager(tmp_path, {"box": box}) as mortal:
        limits = ToolLimits(retry_delay_s=0.05, max_retries=1)
        async with ToolSession([mortal.server], limits=limits) as session:
            with pytest.raises(ToolServerDied, match=r"box\.crash: Connection closed"):
                await session.call("crash", {})
            with pytest.raises(ToolServerDied):
                await session.call("echo", {"text": "again"})
            mortal.process.kill()
            mortal.process.wait()
            with pytest.raises(ToolServerUnavailable, match=r"tool manager http://127.*Connect"):
                await session.call("echo", {"text": "again"})
    with pytest.raises(ToolServerUnavailable, match="Connect"):
        await ToolSession([mortal.server]).open()


async def test_the_bearer_token_of_a_bare_url_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = ToolServer(name="box", command=sys.executable, args=(str(SERVERS / "box.py"), "stdio"))
    with manager(tmp_path, {"box": box}, MANAGER_TOKEN="s3cret") as guarded:
        monkeypatch.delenv("MCP_BEARER_TOKEN", raising=False)
        with pytest.raises(ToolServerUnavailable, match="HTTP 401"):
            await ToolSession([guarded.server]).open()
        monkeypatch.setenv("MCP_BEARER_TOKEN", "s3cret")
        async with ToolSession([guarded.server]) as session:
            assert (await session.call("add", {"a": 1, "b": 2})).text == "3"
        assert "s3cret" not in repr(guarded.server)


async def test_public_servers_behind_a_manager(tmp_path: Path) -> None:
    require("everything", "time")
    with foreign_world() as world, manager(tmp_path, {n: world.stdio(n) for n in ("everything", "time")}) as public:
        async with ToolSession([public.server]) as session:
            image = await session.call("get-tiny-image", {})
            asked = FOREIGN["time"].cases[0]
            clock = await session.call(asked.tool, asked.arguments)
            long = await session.call("trigger-long-running-operation", {"duration": 0.2, "steps": 2})
            resource = await session.call("get-resource-links", {"count": 1})
    assert "[image: image/jpeg, 4033 bytes, not shown]" in image.text
    assert image.raw is not None
    assert "iVBORw0KGgo" in image.raw
    assert json.loads(clock.text)["timezone"] == "Europe/Paris"
    assert long.text.startswith("Long running operation completed")
    assert resource.is_error  # the manager cannot say it
