"""A form of the answer that a request demands is in its prompt, in every dialect, or the request is refused."""

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.exchange import OutputFormat
from sampler.gateway.output_format import instruction_of
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.gateway.agents import ScriptedEngine, played, trained_ids
from tests.sampler.gateway.request_bodies import SCHEMA

HI: Any = [{"role": "user", "content": "How much?"}]
GOOGLE: Any = {"contents": [{"parts": [{"text": "How much?"}]}]}
JSON = "application/json"
GOOGLE_PATH = "/v1beta/models/main:generateContent"
REPLY = '{"total": 7}'


class Total(BaseModel):
    total: int


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat json_schema": ("/v1/chat/completions", {"messages": HI, "response_format": {
        "type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA}}}),
    "chat json_object": ("/v1/chat/completions", {"messages": HI, "response_format": {"type": "json_object"}}),
    "responses text.format": ("/v1/responses", {"input": HI, "text": {
        "format": {"type": "json_schema", "name": "sum", "schema": SCHEMA}}}),
    "anthropic output_config": ("/v1/messages", {"messages": HI, "max_tokens": 90, "output_config": {
        "format": {"type": "json_schema", "schema": SCHEMA}}}),
    "anthropic output_format": ("/v1/messages", {"messages": HI, "max_tokens": 90, "output_format": {
        "type": "json_schema", "schema": SCHEMA}}),
    "google responseJsonSchema": (GOOGLE_PATH, GOOGLE | {"generationConfig": {
        "responseMimeType": JSON, "responseJsonSchema": SCHEMA}}),
    "google responseSchema": (GOOGLE_PATH, GOOGLE | {"generationConfig": {"responseMimeType": JSON, "responseSchema": {
        "type": "OBJECT", "properties": {"total": {"type": "INTEGER"}}, "required": ["total"]}}}),
    "google responseMimeType": (GOOGLE_PATH, GOOGLE | {"generationConfig": {"responseMimeType": JSON}}),
}  # fmt: skip


async def posted(task: AgentTask, name: str) -> httpx.Response:
    path, body = VARIANTS[name]
    keys = {"authorization": f"Bearer {task.api_key}"}
    async with httpx.AsyncClient(base_url=task.url, headers=keys, timeout=60) as client:
        return await client.post(path, json=body if path == GOOGLE_PATH else body | {"model": task.model})


def prompt_of(engine: ScriptedEngine) -> str:
    return TEMPLATE.decode(engine.exchanges[-1][0])


@pytest.mark.parametrize("name", VARIANTS)
async def test_the_form_is_in_the_prompt_and_nothing_of_it_is_unused(store: Store, name: str) -> None:
    engine = ScriptedEngine([REPLY])

    async def agent(task: AgentTask) -> float:
        assert (await posted(task, name)).status_code == 200
        return 1.0

    record, _, dispatches = await played(store, engine, agent)
    assert (record.status, record.score) == (RecordStatus.SCORED, 1.0)
    assert record.metrics == {"agent_first": 1}
    assert trained_ids(dispatches) == engine.exchanges
    has_schema = name not in ("chat json_object", "google responseMimeType")
    assert (json.dumps(SCHEMA) in prompt_of(engine)) == has_schema
    assert "Answer with one JSON" in prompt_of(engine).partition("How much?")[0]


@pytest.mark.parametrize("name", VARIANTS)
async def test_the_form_is_refused_with_its_path(store: Store, name: str) -> None:
    answers: list[httpx.Response] = []

    async def agent(task: AgentTask) -> float:
        answers.append(await posted(task, name))
        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            await client.chat.completions.create(model=task.model, messages=HI)
        return 1.0

    record, _, _ = await played(store, ScriptedEngine([REPLY]), agent, agent_output_format="refuse")
    assert record.status is RecordStatus.SCORED
    assert answers[0].status_code == 400
    message = answers[0].json()["error"]["message"]
    assert message.startswith(("response_format:", "text.format:", "output_", "generationConfig.response"))


async def test_constrain_also_samples_under_the_schema(store: Store) -> None:
    engine = ScriptedEngine([REPLY] * 2)

    async def agent(task: AgentTask) -> float:
        await posted(task, "chat json_schema")
        await posted(task, "chat json_object")
        return 1.0

    record, _, dispatches = await played(store, engine, agent, agent_output_format="constrain")
    assert record.error is None
    assert [json.loads(one["json_schema"]) for one in engine.params] == [SCHEMA, {"type": "object"}]
    assert ["json_schema" in one.sampling_params for one in dispatches] == [True, True]


async def test_the_sdks_own_parsing_works_and_a_conversation_with_a_form_is_one_thread(store: Store) -> None:
    engine = ScriptedEngine([REPLY] * 5)
    found: list[Any] = []

    async def agent(task: AgentTask) -> float:
        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            messages = list(HI)
            for _ in range(2):
                reply = await client.chat.completions.parse(model=task.model, messages=messages, response_format=Total)
                message = reply.choices[0].message
                found.append(message.parsed)
                messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "Again."}]
            found.append(
                (await client.responses.parse(model=task.model, input="Sum.", text_format=Total)).output_parsed
            )
        async with anthropic.AsyncAnthropic(base_url=task.url, api_key=task.api_key, max_retries=0) as claude:
            parsed = await claude.messages.parse(model=task.model, max_tokens=90, messages=HI, output_format=Total)
            found.append(parsed.parsed_output)
        return 1.0

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert found == [Total(total=7)] * 4
    assert record.metrics["agent_continued"] == 1
    assert trained_ids(dispatches) == engine.exchanges
    assert '"total"' in prompt_of(engine)


def test_name_and_description_are_told_with_the_schema() -> None:
    text = instruction_of(OutputFormat("x", {"type": "object"}, "sum", "A sum."))
    assert 'called "sum". A sum.' in text
    assert text.endswith('\n{"type": "object"}')
