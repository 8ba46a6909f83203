"""/v1/chat/completions: the properties that agents rely on."""

from typing import Any

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import AgentFailed
from sampler.core.rendering.template import ChatTemplate
from tests.contract.engines import MODEL, Engine
from tests.sampler.agents.agents import browser, judge, models
from tests.sampler.agents.endpoints import Service

TEMPLATE = ChatTemplate.from_dir(MODEL)
QUESTION = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "What is 4+3?"}]
END = TEMPLATE.token_id("<|im_end|>")
PATIENCE_S = 60.0  # limit on a slow machine for operations that are immediate on an idle one


async def chat(engine: Engine, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
        return await client.post("/v1/chat/completions", json={"model": "any", "messages": QUESTION} | body)


async def test_a_chat_applies_the_models_own_template_to_the_messages(engine: Engine, client: EngineClient) -> None:
    prompt = TEMPLATE.render_ids(QUESTION, None, add_generation_prompt=True)
    greedy = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    expected = await client.generate(engine.url, prompt, greedy, rid="chat")
    found = (await chat(engine, temperature=0, max_tokens=12, ignore_eos=True)).json()
    assert found["choices"][0]["message"]["content"] == TEMPLATE.tokenizer.decode(expected.output_ids)
    assert found["usage"]["prompt_tokens"] == len(prompt)


async def test_a_chat_completion_has_openais_fields_and_its_finish_reason(engine: Engine) -> None:
    cut = (await chat(engine, temperature=0, max_completion_tokens=3, ignore_eos=True)).json()
    assert (cut["object"], cut["model"]) == ("chat.completion", "any")
    assert cut["usage"]["completion_tokens"] == 3
    assert cut["usage"]["total_tokens"] == cut["usage"]["prompt_tokens"] + 3
    (choice,) = cut["choices"]
    assert (choice["index"], choice["finish_reason"], choice["matched_stop"]) == (0, "length", None)
    assert choice["message"]["role"] == "assistant"
    assert cut["metadata"]["weight_version"] == str(engine.label)
    ended = (await chat(engine, temperature=0, max_tokens=200)).json()["choices"][0]
    assert (ended["finish_reason"], ended["matched_stop"]) == ("stop", END)
    assert "<|im_end|>" not in ended["message"]["content"]


async def test_several_choices_count_their_prompt_once(engine: Engine) -> None:
    found = (await chat(engine, n=2, max_tokens=4, ignore_eos=True)).json()
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    assert found["usage"]["completion_tokens"] == 8
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + 8


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "Messages cannot be empty."),
        ({"messages": [{"role": "alien", "content": "x"}]}, "'role' must be one of"),
        ({"messages": "What is 4+3?"}, "messages"),
        ({"max_tokens": -3}, "max_new_tokens must be at least 0, got -3."),
        ({"messages": [{"role": "user", "content": "again " * 3000}]}, "longer than the model's context length"),
    ],
    ids=["no message", "role", "no list", "max_tokens", "too long"],
)
async def test_a_refusal_has_the_shape_of_the_openai_routes(engine: Engine, body: dict[str, Any], message: str) -> None:
    refused = await chat(engine, **body)
    assert refused.status_code == 400
    found = refused.json()
    assert (found["object"], found["code"]) == ("error", 400)
    assert message in found["message"]


async def test_agents_can_use_an_engine_as_their_endpoint(engine: Engine) -> None:
    """The bundled model can neither summarize nor judge: the test checks that it answers, and that this is not a verdict."""
    service = Service([], f"{engine.url}/v1")
    agent = browser(models=models([service], max_tokens=24, timeout=PATIENCE_S))
    summary = await agent.summary_of("What is 4+3?", "What is 4+3?")
    await agent.close()
    assert summary.text
    assert (summary.use.service, summary.use.failures) == (service.url, [])
    assert 0 < (summary.use.completion_tokens or 0) <= 24 < (summary.use.prompt_tokens or 0)
    scorer = judge(
        models=models([service], max_tokens=24, timeout=PATIENCE_S),
        judge_prompt_template="What is {labeled_answer}+{pred_answer}?",
    )
    with pytest.raises(AgentFailed, match="unusable reply"):
        await scorer.verdict("", "4", "3")
    await scorer.close()


@pytest.mark.parametrize("name", ["stream", "logprobs", "tools"])
async def test_the_local_engine_refuses_unsupported_options(engine: Engine, name: str) -> None:
    if engine.kind != "local":
        pytest.skip("a refusal of the local engine alone: SGLang can do this")
    refused = await chat(engine, **{name: [{"type": "function"}] if name == "tools" else True})
    assert refused.status_code == 400
    assert refused.json()["message"].startswith(f"{name} is not supported by the local engine")
