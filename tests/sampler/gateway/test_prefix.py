"""A request whose last message is the assistant's: the model continues it, with exact ids, or the request is refused."""

import contextlib
from typing import Any

import httpx
import openai
import pytest

from sampler.core.rendering.context import Context
from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus
from shared.errors import ConfigError
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.families import FAMILIES
from tests.sampler.gateway.agents import ScriptedEngine, played, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks

REFUSE: tuple[str, ...] = ()
BEGUN = "The sum is <answer>"
QUESTION: dict[str, Any] = {"role": "user", "content": "3 and 4?"}
CHAT: dict[str, Any] = {"model": "main", "messages": [QUESTION, {"role": "assistant", "content": BEGUN}]}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"model": "main", "input": CHAT["messages"]}),
    ("/v1/messages", {"max_tokens": 90, **CHAT}),
    ("/v1beta/models/main:generateContent",
     {"contents": [{"parts": [{"text": "3 and 4?"}]}, {"role": "model", "parts": [{"text": BEGUN}]}]}),
]  # fmt: skip


def text_of(reply: dict[str, Any]) -> str:
    if "choices" in reply:
        return str(reply["choices"][0]["message"]["content"])
    if "candidates" in reply:
        return str(reply["candidates"][0]["content"]["parts"][0]["text"])
    return str((reply.get("output") or [reply])[0]["content"][0]["text"])


async def test_every_dialect_continues_it_and_the_conversation_goes_on(store: Store) -> None:
    engine = ScriptedEngine([" 7</answer>"] * 4 + ["Yes."])

    async def agent(task: AgentTask) -> None:
        keys = {"authorization": f"Bearer {task.api_key}"}
        async with httpx.AsyncClient(base_url=task.url, headers=keys, timeout=60) as client:
            for path, body in ASKED:
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, answer.text
                assert text_of(answer.json()) == " 7</answer>"
            counted = await client.post("/v1/messages/count_tokens", json=ASKED[2][1])
            assert counted.json()["input_tokens"] == len(engine.exchanges[0][0])
            said = [
                QUESTION,
                {"role": "assistant", "content": f"{BEGUN} 7</answer>"},
                {"role": "user", "content": "Sure?"},
            ]
            assert (
                await client.post("/v1/chat/completions", json={"model": "main", "messages": said})
            ).status_code == 200

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert record.metrics == {"agent_first": 1, "agent_again": 3, "agent_continued": 1}
    assert trained_ids(dispatches) == engine.exchanges
    assert all(TEMPLATE.decode(prompt).endswith(f"assistant\n{BEGUN}") for prompt, _ in engine.exchanges[:4])
    prompt, reply = engine.exchanges[3]
    assert engine.exchanges[4][0][: len(prompt) + len(reply)] == [*prompt, *reply]
    assert TEMPLATE.decode(engine.exchanges[4][0]).count(BEGUN) == 1
    response = dispatches[0].response
    assert response is not None
    assert response.text == " 7</answer>"


async def test_the_scorer_reads_the_whole_reply(store: Store) -> None:
    async def agent(task: AgentTask) -> None:
        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            async with client.chat.completions.stream(model=task.model, messages=CHAT["messages"]) as events:
                reply = await events.get_final_completion()
            assert reply.choices[0].message.content == " 7</answer>"

    record, _, _ = await played(store, ScriptedEngine([" 7</answer>"]), agent)
    assert (record.status, record.answer) == (RecordStatus.SCORED, "7")


async def test_another_process_continues_such_a_conversation(store: Store) -> None:
    await tasks(store)
    with_a, with_b = ScriptedEngine([" 7</answer>"]), ScriptedEngine(["Yes."])
    async with gateway(store, with_a) as a, gateway(store, with_b) as b:
        offer = await a.claim()
        keys = {"authorization": f"Bearer {offer['api_key']}"}
        assert (await a.http.post("/v1/chat/completions", json=CHAT, headers=keys)).status_code == 200
        said = [QUESTION, {"role": "assistant", "content": f"{BEGUN} 7</answer>"}, {"role": "user", "content": "Sure?"}]
        answer = await b.http.post("/v1/chat/completions", json={"model": "main", "messages": said}, headers=keys)
        assert answer.status_code == 200, answer.text
        assert (await b.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert record.metrics["agent_continued"] == 1
    assert trained_ids(dispatches) == [*with_a.exchanges, *with_b.exchanges]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_of_every_family_a_beginning_is_continued_with_exact_ids_or_refused(family: Any) -> None:
    for mode in family.modes:
        template = family.template(mode)
        context = Context(template)
        with contextlib.suppress(ConfigError):
            context.start([QUESTION, {"role": "assistant", "content": BEGUN, "prefix": True}])
        if not context.ids:
            assert family.name in REFUSE, "its template shows the beginning of a reply as it is"
            continue
        first = list(context.ids)
        assert template.decode(first).endswith(BEGUN)
        reply = [*template.encode(" 7</answer>"), context.format.end_ids[0]]
        prompt = context.extend(reply, [{"role": "user", "content": "Sure?"}])
        text = template.decode(context.ids)
        assert text.count(BEGUN) == text.count(" 7</answer>") == 1
        assert text.index(BEGUN) < text.index(" 7</answer>") < text.index("Sure?")
        assert prompt.shared_length in (len(first) + len(reply), common(context.ids, [*first, *reply]))


def common(a: list[int], b: list[int]) -> int:
    return next((at for at, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def test_a_template_that_shows_it_otherwise_refuses_the_request() -> None:
    shouts = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | upper) + '<|im_end|>\n' }}{%- endfor %}"
    context = Context(type(TEMPLATE).build(TEMPLATE.tokenizer, shouts, TEMPLATE.special_tokens))
    with pytest.raises(ConfigError, match="cannot be continued"):
        context.start([QUESTION, {"role": "assistant", "content": BEGUN, "prefix": True}])
