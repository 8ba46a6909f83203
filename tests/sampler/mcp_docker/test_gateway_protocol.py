"""Everything that MCP offers to both sides, through the gateway, with the Python SDK's client: two servers, same names."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    Root,
    TextContent,
    ToolListChangedNotification,
)

from sampler.core.tools import ToolServer, ToolSession
from tests.sampler.mcp_docker.gateways import PATIENCE_S, Gateway, gateway

pytestmark = pytest.mark.slow
TALKER = Path(__file__).parent / "talker.py"


def talkers(*names: str) -> dict[str, Any]:
    return {name: {"command": sys.executable, "args": [str(TALKER), name]} for name in names}


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("talking"), talkers("ann", "bob")) as started:
        yield started


@asynccontextmanager
async def client(at: Gateway, **callbacks: Any) -> AsyncIterator[ClientSession]:
    async with (
        streamable_http_client(f"{at.url}/mcp") as (read, write),
        ClientSession(read, write, read_timeout_seconds=PATIENCE_S, **callbacks) as session,
    ):
        session.told = await session.initialize()
        yield session


def text(result: Any) -> str:
    assert not result.is_error, result
    return str(result.content[0].text)


async def until_told(session: ClientSession, tool: str, answer: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while text(await session.call_tool(tool, {})) != answer:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def test_progress_arrives_before_the_answer(talking: Gateway) -> None:
    async with client(talking) as session:
        steps: list[tuple[float, str | None]] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            steps.append((progress, message))

        answers = await asyncio.gather(
            session.call_tool("ann_count_up", {"steps": 3}, progress_callback=on_progress),
            session.call_tool("bob_count_up", {"steps": 2}),
        )
    assert [text(answer) for answer in answers] == ["3 steps", "2 steps"]
    assert steps == [(1, "step 1"), (2, "step 2"), (3, "step 3")]


async def test_a_cancelled_call_is_cancelled_at_its_server_alone(talking: Gateway) -> None:
    async with client(talking) as session:
        call = asyncio.create_task(session.call_tool("ann_wait", {"seconds": 600}))
        other = asyncio.create_task(session.call_tool("bob_wait", {"seconds": 1}))
        await until_told(session, "ann_waits", "1")
        call.cancel()
        await until_told(session, "ann_cancellations", "1")
        assert text(await other) == "waited"
        assert text(await session.call_tool("bob_cancellations", {})) == "0"


async def test_servers_ask_the_clients_model_user_and_folders(talking: Gateway) -> None:
    async def sample(context: Any, params: Any) -> CreateMessageResult:
        asked = params.messages[0].content.text
        return CreateMessageResult(role="assistant", model="m", content=TextContent(type="text", text=asked.upper()))

    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"age": 7})

    async def list_roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri="file:///home/x")])

    callbacks = {"sampling_callback": sample, "elicitation_callback": elicit, "list_roots_callback": list_roots}
    async with client(talking, **callbacks) as session:
        both = await asyncio.gather(
            *(session.call_tool(f"{name}_ask_model", {"question": f"from {name}"}) for name in ("ann", "bob"))
        )
        assert [text(one) for one in both] == ["ann was told FROM ANN", "bob was told FROM BOB"]
        assert text(await session.call_tool("bob_ask_user", {})) == "bob: accept age=7"
        assert text(await session.call_tool("ann_roots", {})) == "file:///home/x"


async def test_a_client_without_a_model_is_not_asked(talking: Gateway) -> None:
    async with client(talking) as session:
        with pytest.raises(MCPError, match="does not serve sampling"):
            await session.call_tool("ann_ask_model", {"question": "?"})


async def test_logs_and_list_changes_reach_the_client(talking: Gateway) -> None:
    logged: list[Any] = []
    changed = asyncio.Event()

    async def on_log(params: Any) -> None:
        logged.append(params.data)

    async def on_message(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with client(talking, logging_callback=on_log, message_handler=on_message) as session:
        await session.call_tool("ann_log_it", {"text": "hello"})
        await session.call_tool("bob_grow", {})
        async with asyncio.timeout(PATIENCE_S):
            await changed.wait()
        names = [tool.name for tool in (await session.list_tools()).tools]
        assert {"grown_bob", "only_ann", "ann_wait", "bob_wait"} <= set(names)
        assert text(await session.call_tool("grown_bob", {})) == "bob"
    assert logged == ["hello"]
    async with client(talking) as other:
        assert "grown_bob" not in [tool.name for tool in (await other.list_tools()).tools]
        assert text(await other.call_tool("only_ann", {})) == "ann"


async def test_resources_prompts_and_completions_go_to_the_server_that_has_them(talking: Gateway) -> None:
    async with client(talking) as session:
        assert sorted(str(found.uri) for found in (await session.list_resources()).resources) == [
            "note://ann/one",
            "note://bob/one",
        ]
        for uri, words in (("note://bob/one", "note of bob"), ("page://bob/3", "page 3 of bob")):
            assert (await session.read_resource(uri)).contents[0].text == words
        with pytest.raises(MCPError, match="not found"):
            await session.read_resource("note://carl/one")
        assert {found.name for found in (await session.list_prompts()).prompts} == {"ann_greet", "bob_greet"}
        prompt = await session.get_prompt("bob_greet", {"who": "me"})
        assert prompt.messages[0].content.text == "bob greets me"
        with pytest.raises(MCPError, match="Unknown prompt: greet"):
            await session.get_prompt("greet", {"who": "me"})
        with pytest.raises(MCPError):
            await session.complete(PromptReference(type="ref/prompt", name="bob_greet"), {"name": "who", "value": "m"})
        assert session.told.instructions == "# ann\nI am ann.\n\n# bob\nI am bob."
        with pytest.raises(MCPError, match="Unknown tool: wait"):
            await session.call_tool("wait", {"seconds": 0})


async def test_an_episode_of_the_revision_without_sessions_keeps_its_processes(talking: Gateway) -> None:
    server = ToolServer(name="gateway", url=f"{talking.url}/mcp", revision="2026-07-28")
    async with ToolSession([server], episode="run/a") as a, ToolSession([server], episode="run/b") as b:
        assert (await a.call("bob_grow", {})).text == "grown"
        assert (await b.call("only_ann", {})).text == "ann"
        async with ToolSession([server], episode="run/a") as again, ToolSession([server], episode="run/b") as other:
            assert (await again.call("grown_bob", {})).text == "bob"
            assert (await other.call("grown_bob", {})).is_error


async def test_the_older_protocol_lists_and_calls(talking: Gateway) -> None:
    server = ToolServer(name="older", url=f"{talking.url}/mcpapi", remote="mcpapi")
    async with ToolSession([server]) as session:
        names = [tool["function"]["name"] for tool in session.list_tools()]
        assert {"ann_wait", "only_bob"} <= set(names)
        assert (await session.call("only_bob", {})).text == "bob"
        wrong = await session.call("ann_wait", {"seconds": "x"})
        assert wrong.is_error
