"""The revision of 2026-07-28 through the gateway, for servers that have the handshake.

What servers ask of the client, what it listens to, and headers that repeat arguments.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitResult

from tests.sampler.mcp_docker.gateways import PATIENCE_S, Gateway, gateway
from tests.sampler.mcp_docker.modern_client import REVISION, ModernClient, message_of
from tests.sampler.mcp_docker.test_gateway_protocol import talkers

pytestmark = pytest.mark.slow
ASKS_USER = {"elicitation": {"form": {}}}
AGED = {"action": "accept", "content": {"age": 7}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("alone"), talkers("ann"), "--warm_sessions", "0") as started:
        yield started


@asynccontextmanager
async def client(at: Gateway, episode: str = "", **capabilities: Any) -> AsyncIterator[ModernClient]:
    opened = ModernClient(at, episode, capabilities)
    try:
        yield opened
    finally:
        await opened.close()


def text(result: dict[str, Any]) -> str:
    assert result["resultType"] == "complete", result
    return str(result["content"][0]["text"])


def asked(result: dict[str, Any]) -> tuple[str, str, str]:
    """(key, message, state) of a result that asks for one input."""
    assert result["resultType"] == "input_required", result
    ((key, request),) = result["inputRequests"].items()
    assert request["method"] == "elicitation/create"
    return key, request["params"]["message"], result["requestState"]


@pytest.mark.parametrize("episode", ["run/7", ""])
async def test_a_servers_question_is_a_result_and_the_repeated_call_brings_the_answer(
    alone: Gateway, episode: str
) -> None:
    before = (await alone.health())["sessions"]
    async with client(alone, episode, **ASKS_USER) as user:
        key, question, state = asked(await user.call("ask_user"))
        assert question == "How old?"
        answered = {"requestState": state, "inputResponses": {key: AGED}}
        assert text(await user.call("ask_user", **answered)) == "ann: accept age=7"
        again = await user.call("ask_user", **answered)
        assert again["code"] == -32602
        assert "requestState is unknown" in again["message"]
    await alone.until(sessions=before + bool(episode), ending=0)  # without an episode its tool processes have ended


async def test_two_questions_at_the_same_time_are_answered_in_turn(alone: Gateway) -> None:
    async with client(alone, "run/twice", **ASKS_USER) as user:
        ages = {"How old is she?": 30, "How old is he?": 40}
        found = await user.call("ask_twice")
        for _ in ages:
            key, question, state = asked(found)
            given = {"action": "accept", "content": {"age": ages[question]}}
            found = await user.call("ask_twice", requestState=state, inputResponses={key: given})
        assert text(found) == "30,40"


async def test_a_server_that_did_not_wait_for_the_input_has_answered_nevertheless(alone: Gateway) -> None:
    async with client(alone, "run/late", **ASKS_USER) as user:
        key, _, state = asked(await user.call("ask_impatiently"))
        assert text(await user.call("write_note", arguments={"text": "x"}))  # in the meantime
        await asyncio.sleep(1.5)
        late = await user.call("ask_impatiently", requestState=state, inputResponses={key: AGED})
        assert text(late) == "answered without you"


async def test_a_client_that_cannot_be_asked_is_not_asked(alone: Gateway) -> None:
    async with client(alone, "run/mute") as mute:
        refused = await mute.call("ask_user")
        assert "does not serve elicitation/create" in str(refused)


async def test_the_sdks_client_answers_a_servers_questions(alone: Gateway) -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"age": 9})

    given = {"mode": REVISION, "read_timeout_seconds": PATIENCE_S, "elicitation_callback": elicit}
    async with Client(f"{alone.url}/mcp", **given) as sdk:
        assert sdk.protocol_version == REVISION
        assert (await sdk.call_tool("ask_user", {})).content[0].text == "ann: accept age=9"


async def test_a_stream_tells_what_it_was_asked_to_tell_and_nothing_else(alone: Gateway) -> None:
    note = "note://ann/one"
    async with client(alone, "run/listen") as user, asyncio.timeout(PATIENCE_S):
        wanted = {"toolsListChanged": True, "resourceSubscriptions": [note, "note://carl/one"]}
        async with user.listening(7, **wanted) as tools, user.listening(8, promptsListChanged=True) as prompts:
            first = await anext(tools)
            assert first["method"] == "notifications/subscriptions/acknowledged"
            assert first["params"]["notifications"] == {"toolsListChanged": True, "resourceSubscriptions": [note]}
            assert (await anext(prompts))["params"]["notifications"] == {"promptsListChanged": True}
            assert text(await user.call("write_note", arguments={"text": "new"})) == note
            updated = await anext(tools)
            assert (updated["method"], updated["params"]["uri"]) == ("notifications/resources/updated", note)
            assert text(await user.call("grow")) == "grown"
            changed = await anext(tools)
            assert changed["method"] == "notifications/tools/list_changed"
            assert {each["params"]["_meta"][SUBSCRIPTION] for each in (first, updated, changed)} == {7}
            next_of_prompts = asyncio.ensure_future(anext(prompts))
            assert message_of(await user.post("resources/read", uri=note))["result"]["contents"][0]["text"] == "new"
            assert not next_of_prompts.done()
            next_of_prompts.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await next_of_prompts
        while text(await user.call("write_note", arguments={"text": "x"})) != "nothing is subscribed":  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # the gateway, another process, has not yet seen the end of the stream


async def test_a_stream_is_answered_at_the_end_of_the_gateway(tmp_path_factory: pytest.TempPathFactory) -> None:
    with gateway(tmp_path_factory.mktemp("ended"), talkers("ann"), "--warm_sessions", "0") as started:
        async with (
            asyncio.timeout(PATIENCE_S),
            client(started, "run/end") as user,
            user.listening(5, toolsListChanged=True) as stream,
        ):
            await anext(stream)
            started.process.terminate()
            last = await anext(stream)
        assert (last["id"], last["result"]["resultType"]) == (5, "complete")
        assert await asyncio.to_thread(started.process.wait, PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("region", "headers", "is_taken"),
    [
        ("north", [("Mcp-Param-Region", "north")], True),
        ("ø", [("Mcp-Param-Region", "=?base64?w7g=?=")], True),
        ("north", [("Mcp-Param-Region", "south")], False),
        ("north", [], False),
        ("north", [("Mcp-Param-Region", "north"), ("Mcp-Param-Region", "south")], False),
        ("ø", [("Mcp-Param-Region", "=?base64?w7?=")], False),
    ],
)
async def test_a_header_says_what_its_argument_says(
    alone: Gateway, region: str, headers: list[tuple[str, str]], is_taken: bool
) -> None:
    async with client(alone, "run/headers") as user:
        answer = await user.post("tools/call", *headers, name="where", arguments={"region": region})
        if is_taken:
            assert message_of(answer)["result"]["content"][0]["text"] == f"in {region}"
        else:
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == -32020


async def test_a_header_that_no_tool_asks_for_is_ignored(alone: Gateway) -> None:
    async with client(alone, "run/headers") as user:
        assert text(await user.call("only_ann", ("Mcp-Param-Other", "x"))) == "ann"
