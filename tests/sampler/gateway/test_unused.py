"""No member of a request is ignored unseen: what changes nothing is told by its path, in every dialect and at every depth."""

import logging
from typing import Any

import httpx
import openai
import pytest

from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.chat_request import read_chat
from sampler.gateway.dialects import CHAT_PATHS
from sampler.gateway.exchange import ChatRequest, GatewayError
from sampler.gateway.google_request import read_google
from sampler.gateway.unused import HEADER, MAX_NAMES, header_of, unused_names
from sampler.settings import SamplerConfig
from shared.documents.packed import unpack_floats
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, odd_ids, played
from tests.sampler.gateway.request_bodies import BODIES, IMAGE_BODIES, Path, at, changed, objects_of
from tests.shared.builders import make_task

NEW = "brand_new"
CASES = [
    (path, body, place)
    for bodies in (BODIES, IMAGE_BODIES)
    for path, body in bodies.items()
    for place in objects_of(body)
]
HI: dict[str, Any] = {"model": "main", "messages": [{"role": "user", "content": "Hi"}]}


def read(path: str, body: Any) -> ChatRequest:
    google = path.replace("main", "{model}")
    return CHAT_PATHS[google].read(body, "main")


@pytest.mark.parametrize("path", BODIES)
def test_the_bodies_of_this_test_are_used_whole(path: str) -> None:
    assert read(path, BODIES[path]).unused == read(path, IMAGE_BODIES[path]).unused == {}


@pytest.mark.parametrize(
    ("path", "body", "place"), CASES, ids=[f"{path}-{'.'.join(map(str, place))}" for path, _, place in CASES]
)
def test_a_member_that_no_reader_knows_is_unused_wherever_it_stands(path: str, body: Any, place: Path) -> None:
    """Also in dialects' future versions: the names are nobody's."""
    body = changed(body, (*place, NEW), {"x": 1})
    spelled = "brandNew" if "models" in path else NEW
    names = [f"{part}" if isinstance(part, str) else "[]" for part in place]
    expected = ".".join([*names, spelled]).replace(".[]", "[]")
    if expected == "tools[].brandNew":  # a kind of tools that nobody here runs
        with pytest.raises(GatewayError, match=r"tools\[0\].brandNew is no functionDeclarations"):
            read(path, body)
    else:
        assert read(path, body).unused == {expected: {"x": 1}}
    assert at(body, place)[NEW] == {"x": 1}


async def posted(task: AgentTask, path: str, body: Any) -> httpx.Response:
    keys = {"authorization": f"Bearer {task.api_key}"}
    async with httpx.AsyncClient(base_url=task.url, headers=keys, timeout=60) as client:
        return await client.post(path, json=body)


async def test_what_is_unused_is_in_the_record_the_request_the_answers_header_and_once_in_the_log(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    body = HI | {"seed": 7, "reasoning_effort": "low", "logit_bias": {}, "user": None, "zz_odd.näme": 1}
    body["messages"] = [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"a": 1}}]}]
    told: list[str] = []

    async def agent(task: AgentTask) -> None:
        for stream in (False, True):
            answer = await posted(task, "/v1/chat/completions", body | {"stream": stream})
            told.append(answer.headers[HEADER])
        assert HEADER not in (await posted(task, "/v1/chat/completions", HI)).headers

    with caplog.at_level(logging.WARNING):
        record, _, dispatches = await played(store, ScriptedEngine(["<answer>1</answer>"] * 3), agent)
    names = ["messages[].content[].cache_control", "reasoning_effort", "seed", "zz_odd.näme"]
    assert told == [", ".join(names).replace("ä", "\\xe4")] * 2
    assert record.metrics == {
        "agent_first": 1, "agent_again": 2, "agent_overridden_messages-content-cache_control": 2,
        "agent_overridden_reasoning_effort": 2, "agent_overridden_seed": 2, "agent_overridden_zz_odd-n_me": 2,
    }  # fmt: skip
    assert [one.client and one.client.overridden for one in dispatches] == [names, names, []]
    assert sum("zz_odd" in one.message for one in caplog.records) == 1


@pytest.mark.parametrize("path", BODIES)
async def test_refuse_answers_400_with_the_path(store: Store, path: str) -> None:
    refused: list[httpx.Response] = []
    places = list(objects_of(BODIES[path]))

    async def agent(task: AgentTask) -> None:
        for place in places:
            refused.append(await posted(task, path, changed(BODIES[path], (*place, NEW), 1)))
        assert (await posted(task, path, BODIES[path])).status_code == 200

    record, _, _ = await played(store, ScriptedEngine(["<answer>1</answer>"]), agent, agent_parameters="refuse")
    assert record.status is RecordStatus.SCORED
    for place, answer in zip(places, refused, strict=True):
        assert answer.status_code == 400
        last = next((part for part in reversed(place) if isinstance(part, str)), "")
        assert f"{last}" in answer.json()["error"]["message"]
        assert ("brandNew" if "models" in path else NEW) in answer.json()["error"]["message"]


async def test_names_that_a_client_chooses_are_bounded(store: Store) -> None:
    async def agent(task: AgentTask) -> None:
        for first in range(0, 300, 100):
            answer = await posted(task, "/v1/chat/completions", HI | {f"k{n}": 1 for n in range(first, first + 100)})
            assert answer.status_code == 200
            assert len(answer.headers[HEADER]) <= 2000

    record, _, dispatches = await played(store, ScriptedEngine(["<answer>1</answer>"] * 3), agent)
    assert record.error is None
    assert len(record.metrics) <= MAX_NAMES + 4
    assert record.metrics["agent_overridden_more"] > 100
    assert all(one.client is not None and len(one.client.overridden) == MAX_NAMES for one in dispatches)
    assert header_of([]) == {}


async def test_any_name_of_a_member_is_answered_and_adds_no_header(store: Store) -> None:
    """A header with a line break, or with a blank at its end, ends the connection: the reply was sampled and is lost."""
    names = ["a\nx-evil: 1", "a\r\nb", " ", "\t", "", "a\x7f", "\U0001f600", "\u2028", "x" * 5000, "a ", " a", "\\x0a"]
    many = {f"{'k' * 25}{n:03d}": 1 for n in range(80)}  # cut behind a comma

    async def agent(task: AgentTask) -> None:
        for path in BODIES:
            for more in [*({name: 1} for name in names), many, {name + "y" * n: 1 for n in range(3) for name in many}]:
                answer = await posted(task, path, BODIES[path] | more)
                assert answer.status_code == 200, (path, more, answer.text)
                assert set(answer.headers.get(HEADER, "")) <= {chr(n) for n in range(32, 127)}
                assert "x-evil" not in answer.headers
        ended.append(task.url)

    ended: list[str] = []
    engine = ScriptedEngine(lambda prompt: "<answer>1</answer>")
    record, _, _ = await played(store, engine, agent, max_turns=100, max_tokens=4000, max_prompt_tokens=4000)
    assert record.error is None
    assert ended


@pytest.mark.parametrize("length", range(40, 60))
def test_a_header_that_is_cut_ends_in_a_name(length: int) -> None:
    assert header_of([f"{n:03d}" + "k" * length for n in range(MAX_NAMES)])[HEADER][-1] not in ", "


async def test_a_temperature_is_used_if_it_is_the_one_that_samples(store: Store) -> None:
    async def agent(task: AgentTask) -> None:
        for value in (1.0, 0.3):
            await posted(task, "/v1beta/models/main:generateContent",
                         {"contents": [{"parts": [{"text": "Hi"}]}], "generation_config": {"temperature": value}})  # fmt: skip

    record, _, _ = await played(store, ScriptedEngine(["<answer>1</answer>"] * 2), agent)
    assert record.metrics["agent_overridden_generationConfig-temperature"] == 1


@pytest.mark.parametrize(
    ("asked", "unused"),
    [
        ({}, []),
        ({"top_p": 0.9, "top_k": -1, "min_p": 0}, []),
        ({"top_p": 1}, ["top_p"]),  # what truncates nothing elsewhere changes the run's distribution too
        ({"top_p": 0.95, "top_k": 5, "min_p": 0.1}, ["min_p", "top_k", "top_p"]),
    ],
)
def test_an_agents_truncation_is_used_if_it_is_the_runs(asked: dict[str, float], unused: list[str]) -> None:
    config = SamplerConfig.load(
        ["--run=r", "--model_name_or_path=m", "--db_connection_string=mongodb://h", "--top_p=0.9"]
    )
    assert unused_names(read_chat(HI | asked), config, make_task(0)) == unused
    body = {"model": "main", "contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"topP": 0.9, "topK": 7}}
    assert unused_names(read_google(body, "main", stream=False), config, make_task(0)) == [
        "generationConfig.topK",
        "model",
    ]


async def test_what_was_cached_at_the_vendor_is_missing_here(store: Store) -> None:
    answers: list[httpx.Response] = []

    async def agent(task: AgentTask) -> None:
        body = {"contents": [{"parts": [{"text": "Hi"}]}], "cachedContent": "cachedContents/1"}
        answers.append(await posted(task, "/v1beta/models/main:generateContent", body))
        await posted(task, "/v1/chat/completions", HI)

    record, _, _ = await played(store, ScriptedEngine(["<answer>1</answer>"] * 2), agent)
    assert record.status is RecordStatus.SCORED
    assert [(one.status_code, one.json()["error"]["message"][:13]) for one in answers] == [(400, "cachedContent")]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probs_are_those_of_the_sampled_tokens(store: Store, stream: bool) -> None:
    engine = ScriptedEngine(["<answer>1 \u00e9</answer>"])
    found: list[Any] = []

    async def agent(task: AgentTask) -> None:
        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            body: Any = {"model": task.model, "messages": task.messages, "logprobs": True, "top_logprobs": 3}
            if stream:
                async with client.chat.completions.stream(**body) as events:
                    reply: Any = await events.get_final_completion()
            else:
                reply = await client.chat.completions.create(**body)
            found.extend(reply.choices[0].logprobs.content)

    record, _, dispatches = await played(store, engine, agent)
    assert record.metrics["agent_overridden_top_logprobs"] == 1
    response = dispatches[0].response
    assert response is not None
    assert len(found) == len(engine.exchanges[0][1]) - 1
    assert bytes(byte for one in found for byte in one.bytes or ()).decode() == "<answer>1 </answer>"
    assert [one.bytes for one in found if one.token == "\ufffd"] == [None, None], "halves of a character"
    assert [one.logprob for one in found] == pytest.approx(list(engine_logprobs(response))[:-1])
    assert all(one.top_logprobs == [] for one in found)


def engine_logprobs(response: Any) -> Any:
    return unpack_floats(response.output_logprobs)


async def test_log_probs_of_the_other_dialects(store: Store) -> None:
    engine = ScriptedEngine(["<answer>1</answer>"] * 2)
    tokens = len(engine_ids(engine))
    seen: list[int] = []

    async def agent(task: AgentTask) -> None:
        body: Any = {
            "contents": [{"parts": [{"text": "Hi"}]}],
            "generationConfig": {"responseLogprobs": True, "logprobs": 2},
        }
        (candidate,) = (await posted(task, "/v1beta/models/main:generateContent", body)).json()["candidates"]
        chosen = candidate["logprobsResult"]["chosenCandidates"]
        assert candidate["avgLogprobs"] == pytest.approx(sum(one["logProbability"] for one in chosen) / len(chosen))
        seen.append(len(chosen))
        body = {"model": "main", "input": "Hi", "include": ["message.output_text.logprobs", "x"]}
        answer = await posted(task, "/v1/responses", body)
        seen.append(len(answer.json()["output"][0]["content"][0]["logprobs"]))
        assert answer.headers[HEADER] == "include"

    record, _, _ = await played(store, engine, agent)
    assert record.error is None
    assert seen == [tokens, tokens]
    assert record.metrics["agent_overridden_generationConfig-logprobs"] == 1


def engine_ids(engine: ScriptedEngine) -> list[int]:
    assert not callable(engine._replies)
    return odd_ids(str(engine._replies[0]))
