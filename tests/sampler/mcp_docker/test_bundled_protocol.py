"""The server of the bundled tools against the SDK's: its client drives both, and both get the same messages."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import version

from sampler.mcp_docker.tools import protocol
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
PATIENCE_S = 60
_QUIET_LOOKS = 40  # 20 a second
OURS, SDKS = "sampler.mcp_docker.tools.calculator", "tests.sampler.mcp_docker.sdk_calculator"
CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUM = {"name": "calculate", "arguments": {"expression": "1+1"}}


def asked(key: Any, method: Any, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": params}


INITIALIZE = asked(0, "initialize", **CLIENT)
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
AFTER_HANDSHAKE = [
    asked(1, "ping"),
    asked("a text", "tools/list"),
    asked(3, "tools/list", cursor="unknown"),
    asked(4, "tools/call", **SUM),
    asked(5, "tools/call", name="absent"),
    asked(6, "tools/call", name="calculate", arguments={"x": 1}),
    asked(7, "tools/call", arguments={}),
    asked(8, "tools/call", name="calculate", arguments=[1]),
    asked(9, "tools/call", name=5),
    asked(10, "tools/call", name="calculate", arguments=None),
    asked(11, "absent/method"),
    asked(12, "logging/setLevel", level="info"),
    asked(13, "resources/list"),
    asked(14, "server/discover"),
    asked(15, "tools/list", _meta=META),
    asked(16, "initialize", **CLIENT),
    {"jsonrpc": "2.0", "id": 17, "method": "ping"},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [99]}},
    {"jsonrpc": "2.0", "id": 99, "result": {}},
    asked(18, "tools/call", name="calculate", arguments={"expression": "1/0  ü"}),
]
NEWEST = "2026-07-28"
CONVERSATIONS = {
    "handshake": [INITIALIZE, INITIALIZED, *AFTER_HANDSHAKE],
    "oldest revision": [asked(0, "initialize", **CLIENT | {"protocolVersion": "2024-11-05"}), *AFTER_HANDSHAKE[:4]],
    "unknown revision": [asked(0, "initialize", **CLIENT | {"protocolVersion": "1999-01-01"})],
    "bad handshake": [asked(0, "initialize"), asked(1, "initialize", protocolVersion=3), INITIALIZE],
    "no handshake": [asked(0, "ping"), asked(1, "tools/list"), asked(2, "tools/call", **SUM)],
    NEWEST: [
        asked(0, "server/discover", _meta=META),
        asked(1, "tools/list", _meta=META),
        asked(2, "tools/call", **SUM, _meta=META),
        asked(3, "ping", _meta=META),
        asked(4, "absent/method", _meta=META),
        asked(5, "tools/call", arguments={}, _meta=META),
        asked(6, "subscriptions/listen", _meta=META, notifications={}),
        asked(7, "initialize", **CLIENT, _meta=META),
        asked(8, "initialize", **CLIENT),
        asked(9, "tools/list", _meta={key: value for key, value in META.items() if not key.endswith("Info")}),
        asked(10, "tools/list", _meta=META | {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}),
        asked(11, "tools/list", _meta=META | {"io.modelcontextprotocol/protocolVersion": 1}),
        asked(12, "tools/list"),
        asked(13, "tools/list", _meta={}),
        asked(14, "tools/call", **SUM, _meta=META),
    ],
}


@contextlib.asynccontextmanager
async def started(module: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=2**24,
        **options,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def answers(module: str, messages: list[Any]) -> list[dict[str, Any]]:
    """One at a time; an unanswerable message is followed by a request that is answered."""
    found = []
    async with started(module) as process:
        for message in messages:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            if "id" in message and "method" in message:
                found.append(json.loads(await process.stdout.readline()))
    return found


def told(answer: dict[str, Any]) -> Any:
    """Without what may differ: names and versions of servers, titles in schemas, the words of errors."""
    if "error" in answer:
        return answer["id"], answer["error"]["code"], (answer["error"].get("data") or {}) if "data" in answer else None
    result = dict(answer["result"])
    result.pop("serverInfo", None)
    result.pop("_meta", None)
    return answer["id"], result


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_it_answers_as_the_sdks_server_does(name: str) -> None:
    ours, sdks = await asyncio.gather(*(answers(module, CONVERSATIONS[name]) for module in (OURS, SDKS)))
    for our, sdk in zip(ours, sdks, strict=True):
        assert told(our) == told(sdk)


def test_it_serves_the_revisions_that_the_sdk_knows() -> None:
    assert protocol.HANDSHAKE_REVISIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert protocol.ENVELOPE_REVISIONS == version.MODERN_PROTOCOL_VERSIONS


@pytest.mark.parametrize(("mode", "revision"), [("legacy", "2025-11-25"), ("auto", NEWEST), (NEWEST, NEWEST)])
async def test_the_sdks_client_lists_and_calls_over_every_revision(mode: str, revision: str, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(command=sys.executable, args=["-m", OURS], env=environment, cwd=tmp_path)
    async with Client(server, mode=mode, read_timeout_seconds=PATIENCE_S) as client:
        assert client.protocol_version == revision
        (tool,) = (await client.list_tools()).tools
        assert tool.input_schema["required"] == ["expression"]
        results = await asyncio.gather(
            *(client.call_tool("calculate", {"expression": f"{number}*7"}) for number in range(200))
        )
        assert [result.content[0].text for result in results] == [str(number * 7) for number in range(200)]
        assert (await client.call_tool("calculate", {"expression": "1/0"})).is_error
        with pytest.raises(MCPError) as refused:
            await client.list_resources()
        assert refused.value.code == -32601


async def test_lines_that_are_no_messages_do_not_end_it() -> None:
    random.seed(5)
    lines = [b"", b"{bad", b"[]", b'"x"', b'{"id":5,"method":"ping"}', b"\xff\xfe", b"[" * 100_000]
    lines += [b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % number for number in (b"null", b"1.5", b"[1]", b"true")]
    lines += [random.randbytes(random.randint(1, 300)).replace(b"\n", b"") for _ in range(2000)]
    lines += [b'{"jsonrpc":"2.0","id":7,"method":5}', b'{"jsonrpc":"2.0","id":8,"method":"ping","params":[1]}']
    async with started(OURS) as process:
        process.stdin.write(b"\n".join([*lines, json.dumps(asked("last", "ping")).encode(), b""]))
        codes: list[Any] = []
        while (answer := json.loads(await process.stdout.readline()))["id"] != "last":
            codes.append((answer["id"], answer["error"]["code"]))
    assert set(codes) == {(None, -32700), (7, -32600), (8, -32600)}


async def test_a_call_in_flight_leaves_room_for_others_and_is_cancelled_or_ended_with_stdin(tmp_path: Path) -> None:
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    command = [sys.executable, "-m", "sampler.mcp_docker.tools.shell"]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)

    async def ask(*messages: dict[str, Any]) -> None:
        process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))
        await process.stdin.drain()

    async def answer() -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            return json.loads(await process.stdout.readline())

    slow = {"name": "run", "arguments": {"command": "echo $$ > pid; sleep 1000", "timeout_s": 2000}}
    try:
        await ask(INITIALIZE, INITIALIZED, asked(1, "tools/call", **slow), asked(1, "ping"), asked(2, "ping"))
        assert [(await answer())["id"] for _ in range(1)] == [0]
        twice = await answer()
        assert (twice["id"], twice["error"]["code"]) == (1, -32600), "an id that is in flight"
        assert await answer() == {"jsonrpc": "2.0", "id": 2, "result": {}}
        async with asyncio.timeout(PATIENCE_S):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        shell = int((tmp_path / "pid").read_text())
        await ask({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}, asked(3, "ping"))
        assert (await answer())["id"] == 3, "a cancelled call has no answer"
        async with asyncio.timeout(PATIENCE_S):
            while os.path.exists(f"/proc/{shell}"):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.05)
        await ask(asked(4, "tools/call", **slow), asked(5, "ping"))
        assert (await answer())["id"] == 5
        process.stdin.close()
        closed = await answer()
        assert (closed["id"], closed["error"]["code"]) == (4, -32000)
        assert await process.stdout.read() == b""
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def until_it_rests(pid: int, into: asyncio.WriteTransport) -> None:
    """Until the server has taken all that is written, or sleeps and takes nothing: a slow machine only makes it take longer."""
    process, quiet, before = psutil.Process(pid), 0, None
    async with asyncio.timeout(PATIENCE_S):
        while quiet < _QUIET_LOOKS and into.get_write_buffer_size() > 0:
            now = (into.get_write_buffer_size(), process.cpu_times()[:2])
            quiet = quiet + 1 if now == before and process.status() == psutil.STATUS_SLEEPING else 0
            before = now
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("tool", ["calculator", "shell"])
async def test_it_reads_no_more_while_its_client_does_not_read(tool: str) -> None:
    async with started(f"sampler.mcp_docker.tools.{tool}") as process:
        number, line = 20_000, json.dumps(asked(1, "tools/list")).encode() + b"\n"
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        assert b"protocolVersion" in await process.stdout.readline()
        process.stdout._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio and typer do not declare it
        process.stdin.write(line * number)
        await until_it_rests(process.pid, process.stdin.transport)
        assert process.stdin.transport.get_write_buffer_size() > 0, "the server takes no more"
        process.stdout._transport.resume_reading()  # type: ignore[attr-defined]  # asyncio and typer do not declare it
        for _ in range(number):
            assert b'"tools":' in await process.stdout.readline()


def test_it_reads_from_a_file_and_writes_to_one(tmp_path: Path) -> None:
    messages = [INITIALIZE, INITIALIZED, asked(1, "tools/call", **SUM)]
    (tmp_path / "in").write_text("".join(json.dumps(message) + "\n" for message in messages))
    for module in (OURS, "sampler.mcp_docker.tools.files"):
        with (tmp_path / "in").open() as stdin, (tmp_path / "out").open("w") as stdout:
            command = [sys.executable, "-m", module]
            subprocess.run(command, cwd=ROOT, stdin=stdin, stdout=stdout, check=True, timeout=PATIENCE_S)
        answers = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        assert [answer["id"] for answer in answers] == [0, 1]


FAILING = """
from sampler.mcp_docker.tools.serving import BundledTool, ToolArguments, run, server_of
async def later(arguments): raise KeyError("later")
def now(arguments): raise KeyError("now")
tools = [BundledTool(name, "", ToolArguments, function, quick) for name, function, quick in
         (("later", later, False), ("thread", now, False), ("quick", now, True))]
run(server_of("failing", tools))
"""


async def test_an_error_in_a_tool_is_its_calls_alone(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(command=sys.executable, args=[str(tmp_path / "failing.py")], env=environment)
    async with Client(server, mode="legacy", read_timeout_seconds=PATIENCE_S) as client:
        for name in ("later", "thread", "quick"):
            with pytest.raises(MCPError, match="KeyError") as refused:
                await client.call_tool(name, {})
            assert refused.value.code == -32603
        assert len((await client.list_tools()).tools) == 3
