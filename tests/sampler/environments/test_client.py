"""The client of the controller protocol: what each answer of a foreign controller means. The transport is scripted."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sampler.core.errors import EnvironmentBusy, EnvironmentFailed
from sampler.environments.answers import StepReply, step_of
from sampler.environments.client import EnvironmentClient, Unreachable
from sampler.environments.session import EnvironmentSession
from shared.documents.states import Termination
from shared.errors import ConfigError

URL = "http://controller:5020/api"
SAYS = {
    "messages": [{"role": "user", "content": "go"}],
    "status": "running",
    "finish": False,
    "reward": 0,
    "metric": {},
}


def client(answer: httpx.Response | Exception, asked: list[httpx.Request] | None = None) -> EnvironmentClient:
    async def respond(request: httpx.Request) -> httpx.Response:
        if asked is not None:
            asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return EnvironmentClient(5, 5, 8, httpx.MockTransport(respond))


async def test_a_start_carries_the_task_and_a_session_its_header() -> None:
    asked: list[httpx.Request] = []
    started = httpx.Response(200, json=SAYS, headers={"session_id": "17"})
    session, step = await client(started, asked).start(URL, "db", "q3", None)
    assert (session, step.status, step.reward) == ("17", "running", 0.0)
    assert json.loads(asked[0].content) == {"name": "db", "index": "q3", "custom_task": None}
    await client(started, asked).start(URL, "db", 3, {"hard": True}, "tok")
    assert json.loads(asked[1].content) == {"name": "db", "index": -1, "custom_task": {"hard": True, "index": 3}}
    assert asked[1].headers["authorization"] == "Bearer tok"
    await client(httpx.Response(200, json=SAYS), asked).renew(URL, "17")
    assert json.loads(asked[2].content) == {"messages": [{"role": "assistant", "content": ""}]}
    assert (asked[2].headers["session_id"], asked[2].url.path) == ("17", "/api/interact")


@pytest.mark.parametrize("status", [406, 429, 503])
async def test_a_full_controller_is_busy_and_says_for_how_long(status: int) -> None:
    with pytest.raises(EnvironmentBusy, match=f"HTTP {status}: no room") as caught:
        await client(httpx.Response(status, text="no room", headers={"retry-after": "3"})).start(URL, "db", 1, None)
    assert caught.value.retry_after_s == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (httpx.Response(500, text="boom"), "HTTP 500: boom"),
        (httpx.Response(400, json={"detail": "No such session"}), "No such session"),
        (httpx.Response(422, text="no such field"), "HTTP 422"),
        (httpx.Response(200, text="<html>"), "not JSON"),
        (httpx.Response(200, json=[1]), "no step of the protocol"),
        (httpx.Response(200, json={"messages": [{"content": "who?"}]}), "no step of the protocol"),
        (httpx.Response(200, json={**SAYS, "reward": "NaN"}), "the reward is 'NaN'"),
        (httpx.Response(200, json={**SAYS, "messages": []}), "without a message for the model"),
        (httpx.Response(200, content=b" " * (17 << 20)), "more than 16777216 bytes"),
        (httpx.ReadTimeout("slow"), "ReadTimeout"),
    ],
)
async def test_what_is_no_step_is_a_failure_and_never_a_reward(answer: httpx.Response | Exception, told: str) -> None:
    with pytest.raises(EnvironmentFailed, match=told) as caught:
        await client(answer).interact(URL, "1", [{"role": "assistant", "content": "x"}])
    assert type(caught.value) is EnvironmentFailed


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 0


def saying(**values: Any) -> dict[str, Any]:
    return {**SAYS, "messages": [{"role": "user", "content": "go", **values}]}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({**SAYS, "reward": 10**400}, "the reward is 1000"),
        ({**SAYS, "reward": True, "metrics": [1]}, "metrics is"),
        ({**SAYS, "metrics": {"score": float("nan")}}, "metrics.score is nan"),
        ({**SAYS, "metrics": {"score": "0.5"}}, "metrics.score is '0.5'"),
        ({**SAYS, "finish": "perhaps"}, "finish is 'perhaps'"),
        ({**SAYS, "status": 5}, "status is 5"),
        ({**SAYS, "messages": "go"}, "messages is 'go'"),
        (saying(content=5), "messages.0.content"),
        (saying(content={"text": "go"}), "messages.0.content"),
        (saying(content=None), "has no content"),
        (saying(content=[{"type": "image_url", "image_url": "x"}]), "messages.0.content"),
        (saying(role="huh"), "messages.0.role is 'huh'"),
        (saying(role=["user"]), "messages.0.role"),
        (saying(role="tool", tool_call_id=["c1"]), "messages.0.tool_call_id"),
        (saying(role="assistant", tool_calls=5), "messages.0.tool_calls is 5"),
        (saying(role="assistant", tool_calls=[{"function": {"name": 1, "arguments": ""}}]), "function.name is 1"),
        (saying(seen={"a\0b": 1}), "not allowed in a name"),
        (saying(seen=2**64), "more than 64 bits"),
        (saying(seen=float("inf")), "inf is no JSON"),
        (saying(seen=deep(300)), "nested more than"),
        ({**SAYS, "result": deep(300)}, "nested more than"),
        ({**SAYS, "tools": [{}]}, "tools.0.function"),
        ({**SAYS, "tools": [{"function": {"name": ""}}]}, "tools.0.function.name"),
        ({**SAYS, "tools": 7}, "tools is 7"),
    ],
)
async def test_an_answer_is_checked_whole_where_it_enters(answer: dict[str, Any], told: str) -> None:
    content = json.dumps(answer).encode()
    with pytest.raises(EnvironmentFailed, match=told):
        await client(httpx.Response(200, content=content)).interact(URL, "1", [{"role": "assistant", "content": "x"}])


async def test_half_a_surrogate_pair_is_replaced_wherever_it_is() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "\ud800", "arguments": "{}"}}
    parts = [{"type": "text", "text": "a\udfff"}, {"type": "text", "text": "b\0"}]
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": parts}]
    content = json.dumps({**SAYS, "messages": messages, "result": 2**70}).encode()
    step = await client(httpx.Response(200, content=content)).interact(URL, "1", [])
    first, second = step.messages
    assert (first["content"], first["tool_calls"][0]["function"]["name"]) == ("", "\ufffd")
    assert (second["content"], step.result) == ("a\ufffd\nb\ufffd", 2**70)


@pytest.mark.parametrize("status", [406, 429, 503])
async def test_a_step_that_is_refused_as_busy_is_a_failure(status: int) -> None:
    with pytest.raises(EnvironmentFailed, match=f"HTTP {status}") as caught:
        await client(httpx.Response(status, text="full")).interact(URL, "1", [])
    assert type(caught.value) is EnvironmentFailed


@pytest.mark.parametrize(
    "bad",
    [
        httpx.Response(200, json={**SAYS, "messages": []}, headers={"session_id": "17"}),
        httpx.Response(200, text="<html>", headers={"session_id": "17"}),
        httpx.Response(200, content=b" " * (17 << 20), headers={"session_id": "17"}),
    ],
)
async def test_a_session_whose_first_step_is_bad_is_cancelled(bad: httpx.Response) -> None:
    asked: list[httpx.Request] = []
    with pytest.raises(EnvironmentFailed):
        await client(bad, asked).start(URL, "db", 1, None, "tok")
    assert [request.url.path for request in asked] == ["/api/start_sample", "/api/cancel"]
    assert (asked[1].headers["session_id"], asked[1].headers["authorization"]) == ("17", "Bearer tok")


async def test_a_session_id_that_cannot_be_sent_back_is_a_failure() -> None:
    bad = httpx.Response(200, json=SAYS, headers=[(b"session_id", "\u00e9".encode())])
    with pytest.raises(EnvironmentFailed, match="session_id"):
        await client(bad).start(URL, "db", 1, None)


class Dripping(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.02)  # slowly, without an end


async def test_an_answer_that_drips_exceeds_the_time_out() -> None:
    asked: list[httpx.Request] = []

    async def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path.endswith("/cancel"):
            return httpx.Response(200, json={})
        return httpx.Response(200, headers={"session_id": "17"}, stream=Dripping())

    dripped = EnvironmentClient(0.2, 0.2, 8, httpx.MockTransport(respond))
    async with asyncio.timeout(5):
        with pytest.raises(EnvironmentFailed, match=r"no whole answer within 0\.2 s"):
            await dripped.interact(URL, "1", [])
        with pytest.raises(EnvironmentFailed, match=r"no whole answer within 0\.2 s"):
            await dripped.start(URL, "db", 1, None)
    assert asked[-1].url.path == "/api/cancel"


async def test_a_service_that_is_away_is_told_from_one_that_fails() -> None:
    with pytest.raises(Unreachable, match="ConnectError"):
        await client(httpx.ConnectError("refused")).start(URL, "db", 1, None)


async def test_a_task_that_the_environment_refuses_is_wrong_itself() -> None:
    with pytest.raises(ConfigError, match="index is 9; expected"):
        await client(httpx.Response(422, json={"detail": "index is 9; expected 0 to 3"})).start(URL, "db", 9, None)


async def test_a_session_that_cannot_be_cancelled_is_left_to_its_lease() -> None:
    await client(httpx.ConnectError("refused")).cancel(URL, "1")


def seen(**values: Any) -> StepReply:
    return step_of({"messages": [], "finish": True, **values}, URL)


@pytest.mark.parametrize(
    ("status", "termination"),
    [
        ("completed", Termination.ANSWERED),
        ("agent validation failed", Termination.ANSWERED),
        ("agent invalid action", Termination.ANSWERED),
        ("task limit reached", Termination.TURNS_LIMIT),
        ("agent context limit", Termination.LENGTH_LIMIT),
    ],
)
def test_an_end_of_the_world_is_a_termination(status: str, termination: Termination) -> None:
    assert seen(status=status, reward=0.0).termination is termination


@pytest.mark.parametrize("status", ["task error", "cancelled", "unknown", "exploded"])
def test_a_failed_world_is_no_termination_though_agentrl_sends_the_reward_0_with_it(status: str) -> None:
    reward = None if status == "unknown" else 0
    with pytest.raises(EnvironmentFailed, match=f"ended with status '{status}': disk full"):
        _ = seen(status=status, reward=reward, result="disk full").termination


def test_an_end_of_unknown_status_counts_where_it_has_a_reward() -> None:
    assert seen(reward=0.5).termination is Termination.ANSWERED
    assert seen(metrics={"score": 1}).termination is Termination.ANSWERED


def test_steps_of_agentrls_workers_are_unwrapped_and_their_metrics_found() -> None:
    step = step_of({"session_id": 3, "env_out": {**SAYS, "metric": {"score": 0.5, "sql": "x", "bad": None}}}, URL)
    assert (step.metrics, step.score, step.restarts) == ({"score": 0.5}, 0.5, False)
    assert step_of({**SAYS, "messages": [{"role": "system", "content": "s"}]}, URL).restarts


async def test_a_renewal_that_failed_once_loses_no_session() -> None:
    asked: list[bytes] = []

    async def respond(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        return httpx.Response(500 if len(asked) == 1 else 200, json={**SAYS, "reward": len(asked)})

    session = EnvironmentSession(EnvironmentClient(5, 5, 8, httpx.MockTransport(respond)), URL, "1", step_of(SAYS, URL))
    async with asyncio.timeout(20), session.kept(0.05):
        while len(asked) < 2:  # noqa: ASYNC110 - the session's own timer
            await asyncio.sleep(0.01)
        assert asked[0] == asked[1], "it is tried again"
        step = await session.interact([{"role": "assistant", "content": "x"}])
    assert (step.reward or 0) >= 3


PNG_URL = "data:image/png;base64,iVBORw0KGgo="


def showing(role: str, *urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {**SAYS, "messages": [{"role": role, "content": [{"type": "text", "text": "look"}, *parts]}]}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (showing("user", PNG_URL, "https://a.example/1.png"), "is 'https://a.example/1.png'; expected one that begins"),
        (showing("tool", "file:///etc/passwd"), "is 'file:///etc/passwd'; expected one that begins with data:image/"),
        (showing("assistant", PNG_URL), "a message of role assistant has images; expected user or tool"),
        (showing("user", *[PNG_URL] * 65), "65 images in a step; expected 64 at most"),
        ({**SAYS, "messages": [{"role": "user", "content": [{"type": "image", "path": "1.png"}]}]}, "type"),
    ],
)
def test_images_of_a_foreign_controller_are_in_its_answer_few_and_in_messages_of_user_and_tools(
    answer: dict[str, Any], told: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=told) as failed:
        step_of(answer, URL)
    assert len(str(failed.value)) < 500, "no image is quoted"


def test_a_step_with_images_keeps_its_parts_and_one_of_texts_becomes_a_text() -> None:
    (message,) = step_of(showing("tool", PNG_URL, PNG_URL), URL).messages
    assert [part["type"] for part in message["content"]] == ["text", "image_url", "image_url"]
    assert step_of(showing("user"), URL).messages == [{"role": "user", "content": "look"}]
