"""Whatever a client sends: an answer, or 400 with the path; never a 5xx, a traceback or a lost attempt, in any dialect."""

import contextlib
import json
import math
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sampler.core.episode.threads import EpisodeThreads
from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.bodies import plain_json
from sampler.gateway.dialects import CHAT_PATHS
from sampler.gateway.exchange import ChatRequest, GatewayError, Problem, SentImage
from shared.documents.states import RecordStatus, Termination
from shared.errors import ConfigError
from shared.outside_values import problem_of
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.gateway.agents import ScriptedEngine, played
from tests.sampler.gateway.request_bodies import ANYTHING, BODIES, IMAGE_BODIES, changed, mutants, nested, places_of

VALUES: list[Any] = [None, True, False, 0, -1, 1.5, 2**63, math.nan, math.inf, "", "x", "\0", "\ud83d", [], [1], [[]], [None],
                     ["x"], {}, {"x": 1}, {"\0": 1}, {"type": "x"}, [{}], [{"type": 1}], [{"type": "text"}], [{"text": 1}],
                     nested(70), nested(300), "[" * 2000, '{"a": "\\ud83d"}', '{"id": 18446744073709551615}']  # fmt: skip


def read(path: str, body: Any) -> ChatRequest:
    """As `app` does."""
    return CHAT_PATHS[path.replace("main", "{model}")].read(
        plain_json(json.dumps(body).encode(), with_nul=True), "main"
    )


def read_or_refused(path: str, body: Any) -> GatewayError | None:
    """Any exception but a refusal of the request is raised, and what is taken can be stored and encoded."""
    try:
        request = read(path, body)
    except GatewayError as error:
        return error
    messages: list[Any] = [{**message, "content": _plain(message["content"])} for message in request.messages]
    plain = [messages, [dict(tool) for tool in request.tools], dict(request.unused)]
    assert problem_of(plain, most_depth=90, with_nul=True) is None
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    assert problem_of([arguments for arguments in calls if isinstance(arguments, dict)]) is None
    with contextlib.suppress(ConfigError):  # the template refuses it, as the gateway does then
        TEMPLATE.render_ids(messages, request.tools, add_generation_prompt=True)
    return None


def _plain(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [{"type": "image", "data": one.data} if isinstance(one, SentImage) else one for one in content]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("bodies", [BODIES, IMAGE_BODIES], ids=["text", "images"])
def test_any_value_in_any_place_is_taken_or_refused(path: str, bodies: dict[str, Any]) -> None:
    refused = 0
    for place in places_of(bodies[path]):
        for value in VALUES:
            error = read_or_refused(path, changed(bodies[path], place, value))
            refused += error is not None
            assert error is None or (error.problem is Problem.INVALID and error.message)
    assert refused > 100


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_changes_of_a_body_are_taken_or_refused(path: str, data: st.DataObject) -> None:
    read_or_refused(path, data.draw(mutants(BODIES[path]) | mutants(IMAGE_BODIES[path]) | ANYTHING))


@pytest.mark.parametrize(
    ("path", "place", "value", "told"),
    [
        ("/v1/messages", ("messages", 0, "content", 0), 7, "messages[0].content[0] is 7; expected an object"),
        ("/v1/messages", ("messages", 2, "content", 0, "content"), 42, "messages[2].content[0].content is 42; expected a text"),
        ("/v1/messages", ("system",), 7, "system is 7; expected a text or a list of objects"),
        ("/v1/responses", ("input", 0, "content"), 5, "input[0].content is 5; expected a text or a list of objects"),
        ("/v1/responses", ("input", 4, "output"), 42, "input[4].output is 42; expected a text or a list of objects"),
        ("/v1/chat/completions", ("messages", 1, "content"), "half \ud83d", "messages[1].content contains half of a surrogate"),
        ("/v1/chat/completions", ("messages", 2, "tool_calls", 0, "function", "arguments"), '{"a": "\\u0000"}',
         "messages[2].tool_calls[0].function.arguments.a contains the character \\u0000"),
        ("/v1/chat/completions", ("messages", 2, "tool_calls", 0, "function", "arguments"), '{"\\u0000": 1}',
         "messages[2].tool_calls[0].function.arguments has a name with the character \\u0000"),
        ("/v1/chat/completions", ("messages", 2, "tool_calls", 0, "function", "arguments"), '{"a": "half \\ud83d"}',
         "messages[2].tool_calls[0].function.arguments.a contains half of a surrogate pair"),
        ("/v1/messages", ("messages", 1, "content", 2, "input", "a"), 2**64, "messages[1].content[2].input.a is a whole number"),
        ("/v1beta/models/main:generateContent", ("contents", 1, "parts", 1, "functionCall", "args"), {"\0": 1},
         "contents[1].parts[1].functionCall.args has a name"),
        ("/v1/chat/completions", ("tools", 0, "function", "parameters"), nested(90), "nested more than"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_path_of_the_field(path: str, place: Any, value: Any, told: str) -> None:
    error = read_or_refused(path, changed(BODIES[path], place, value))
    assert error is not None
    assert told in error.message


@pytest.mark.parametrize("path", BODIES)
async def test_malformed_requests_cost_no_attempt(store: Store, path: str) -> None:
    """Over HTTP, with an engine that replies to what is taken; afterwards the attempt goes on and is scored."""
    places = [place for at, place in enumerate(places_of(BODIES[path])) if at % 2 == 0]
    bodies = [changed(BODIES[path], place, VALUES[at % len(VALUES)]) for at, place in enumerate(places)]
    bodies += [changed(BODIES[path], place, VALUES[at * 7 % len(VALUES)]) for at, place in enumerate(places)]
    statuses: set[int] = set()

    async def agent(task: AgentTask) -> None:
        headers = {"authorization": f"Bearer {task.api_key}", "content-type": "application/json"}
        async with httpx.AsyncClient(base_url=task.url, headers=headers, timeout=60) as client:
            for body in [*bodies, BODIES[path]]:
                answer = await client.post(path, content=json.dumps(body))
                statuses.add(answer.status_code)
                assert answer.status_code in (200, 400, 404), (body, answer.text)
            assert answer.status_code == 200, answer.text

    engine = ScriptedEngine(lambda prompt: "<answer>1</answer>")
    record, _, _ = await played(store, engine, agent, max_turns=500, max_tokens=4000, max_prompt_tokens=4000)
    assert record.error is None
    assert record.status is RecordStatus.SCORED
    assert {200, 400} <= statuses


@pytest.mark.parametrize("path", BODIES)
async def test_a_bug_in_a_request_is_an_error_of_its_dialect_and_fails_the_attempt_alone(
    store: Store, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **named: Any) -> None:
        raise AttributeError("nobody expected this")

    async def agent(task: AgentTask) -> None:
        headers = {"authorization": f"Bearer {task.api_key}", "content-type": "application/json"}
        async with httpx.AsyncClient(base_url=task.url, headers=headers, timeout=60) as client:
            answer = await client.post(path, content=json.dumps(BODIES[path]))
            assert answer.status_code == 500
            assert (
                "the gateway met a bug: AttributeError: nobody expected this; at " in answer.json()["error"]["message"]
            )
            assert answer.headers["x-should-retry"] == "false"

    monkeypatch.setattr(EpisodeThreads, "replied", broken)
    record, slot, _ = await played(store, ScriptedEngine(lambda prompt: "1"), agent)
    assert (record.termination, slot.failures) == (Termination.UNFORESEEN, 1)
    assert "nobody expected this" in (record.error or "")
