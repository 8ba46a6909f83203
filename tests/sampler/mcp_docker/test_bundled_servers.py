"""The tools that come with MCP-Docker, as servers: each is used by the SDK's client."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.conftest import ROOT
from tests.sampler.mcp_docker.tool_files import corpus, database

pytestmark = pytest.mark.slow
TOOLS = "sampler.mcp_docker.tools"


async def called(name: str, arguments: list[str], cwd: Path, tool: str, **values: Any) -> str:
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", f"{TOOLS}.{name}", *arguments], env=environment, cwd=cwd
    )
    async with Client(server, read_timeout_seconds=120) as client:
        listed = {one.name: one for one in (await client.list_tools()).tools}
        assert listed[tool].description
        assert (await client.call_tool("absent", {})).is_error
        assert (await client.call_tool(tool, {"no_such_argument": 1})).is_error
        result = await client.call_tool(tool, values)
        assert not result.is_error, result
        return result.content[0].text  # type: ignore[union-attr]  # it is there


async def test_every_tool_serves_the_sdks_client(tmp_path: Path) -> None:
    answers = await asyncio.gather(
        called("python", [], tmp_path, "run", code="6 * 7"),
        called("shell", [], tmp_path, "run", command="echo $((6 * 7))"),
        called("files", [str(tmp_path)], tmp_path, "list"),
        called("search", [str(corpus(tmp_path))], tmp_path, "search", query="deepest lake"),
        called("calculator", [], tmp_path, "calculate", expression="1/3 + 1/6"),
        called("sql", [str(database(tmp_path))], tmp_path, "query", statement="SELECT sum(people) FROM cities"),
    )
    assert answers[0] == "42\n"
    assert answers[1] == "42\n\n[exit status 0]"
    assert "corpus.sqlite" in answers[2]
    assert answers[3].startswith("[b] Lakes")
    assert answers[4] == "1/2 = 0.5"
    assert answers[5] == "sum(people)\n332000\n[1 rows]"


def test_the_example_of_an_mcp_servers_file_has_every_tool() -> None:
    servers = json.loads((ROOT / "assets" / "mcp_docker.json").read_text())["mcpServers"]
    modules = {
        path.stem
        for path in (ROOT / "sampler/mcp_docker/tools").glob("*.py")
        if "\ndef tool_server(" in path.read_text()
    }
    assert {server["args"][1].rpartition(".")[2] for server in servers.values()} == modules - {"__init__"}
