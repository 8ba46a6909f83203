"""The bundled tool server answers every evaluation task, over HTTP and over standard input, and refuses politely."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from world import TOOLS

CALL_TIMEOUT_S = 20.0


def text_of(result: Any) -> str:
    (part,) = result.content
    return str(part.text)


async def solve(client: Client, query: str) -> str:
    """Answer a question by tool calls alone, reading from the question only what is written in it."""
    if box := re.search(r"owner of box (\w+) like", query):
        owner = await client.call_tool("box_owner", {"box": box[1]}, read_timeout_seconds=CALL_TIMEOUT_S)
        person = {"person": text_of(owner)}
        return text_of(await client.call_tool("favorite_color", person, read_timeout_seconds=CALL_TIMEOUT_S))
    expression = {"expression": query.removeprefix("What is ").removesuffix("?")}
    return text_of(await client.call_tool("calculator", expression, read_timeout_seconds=CALL_TIMEOUT_S))


async def solve_evaluation_tasks(client: Client, example_dir: Path) -> None:
    await client.list_tools()
    tasks = [json.loads(line) for line in (example_dir / "eval.jsonl").read_text().splitlines()]
    assert len(tasks) == 200
    for task in tasks:
        assert await solve(client, task["query"]) == task["answer"], task["id"]


async def test_every_evaluation_task_is_solved_by_calls_over_http(tool_url: str, example_dir: Path) -> None:
    async with Client(tool_url, mode="legacy") as client:
        await solve_evaluation_tasks(client, example_dir)


async def test_every_evaluation_task_is_solved_by_calls_over_stdio(example_dir: Path) -> None:
    arguments = [str(example_dir / "tool_server.py"), "--transport", "stdio"]
    async with Client(StdioServerParameters(command=sys.executable, args=arguments), mode="legacy") as client:
        await solve_evaluation_tasks(client, example_dir)


async def test_demonstrations_offer_the_very_tools_that_the_server_lists(tool_url: str) -> None:
    async with Client(tool_url, mode="legacy") as client:
        listed = (await client.list_tools()).tools
    offered = [tool["function"] for tool in TOOLS]
    assert [tool.name for tool in listed] == [function["name"] for function in offered]
    for tool, function in zip(listed, offered, strict=True):
        assert list(tool.input_schema["properties"]) == list(function["parameters"]["properties"])
        assert tool.input_schema["required"] == function["parameters"]["required"]


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("box_owner", {"box": "ZZ99"}, "unknown box ZZ99"),
        ("favorite_color", {"person": "ZZZZ"}, "unknown person ZZZZ"),
        ("calculator", {"expression": "47+"}, "malformed expression 47+, use numbers with + - *"),
        ("calculator", {"expression": "__import__('os')"}, "malformed expression __import__('os'), use numbers"),
        ("calculator", {"formula": "1+1"}, "expression"),
    ],
)
async def test_a_wrong_call_is_an_error_result_that_says_what_is_wrong(
    tool_url: str, tool: str, arguments: dict[str, str], message: str
) -> None:
    async with Client(tool_url, mode="legacy") as client:
        result = await client.call_tool(tool, arguments, read_timeout_seconds=CALL_TIMEOUT_S)
        assert result.is_error
        assert message in text_of(result)
        right = await client.call_tool("calculator", {"expression": "1+1"}, read_timeout_seconds=CALL_TIMEOUT_S)
        assert not right.is_error  # the session outlives the error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("transport", ["streamable-http", "stdio"])
def test_the_server_ends_cleanly_on_a_signal(example_dir: Path, transport: str, number: signal.Signals) -> None:
    command = [sys.executable, str(example_dir / "tool_server.py"), "--transport", transport, "--port", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        if transport == "stdio":
            server.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            server.stdin.flush()
            server.stdout.readline()
        else:
            assert server.stderr.readline().startswith("tools at http://127.0.0.1:")
        server.send_signal(number)
        assert server.wait(timeout=60) == 0
        assert server.stderr.read() == ""


def test_a_taken_port_is_named_with_the_remedy(tool_url: str, example_dir: Path) -> None:
    found = re.search(r":(\d+)/", tool_url)
    assert found, tool_url
    port = found[1]
    command = [sys.executable, str(example_dir / "tool_server.py"), "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"cannot listen on 127.0.0.1:{port}")
    assert "--port" in ended.stderr
