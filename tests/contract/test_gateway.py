"""Agents' clients on the tested engines: each token that would be trained has the log-prob that its context gives it."""

import asyncio
from typing import Any

import anthropic
import openai

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.packed import unpack_floats
from shared.store import Store
from tests.contract.engines import EXACT, Engine
from tests.sampler.gateway.agents import played, trained_ids

QUESTIONS = ("What is 4+3?", "And 5+1?")
MOST = 48


async def by_chat(task: AgentTask) -> int:
    history: list[Any] = []
    pieces = 0
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for question in QUESTIONS:
            history.append({"role": "user", "content": f"In chat: {question}"})
            body: Any = {"model": task.model, "messages": history, "max_tokens": MOST}
            async with client.chat.completions.stream(**body) as stream:
                pieces += len([event async for event in stream if event.type == "content.delta"])
                reply = await stream.get_final_completion()
            history.append(reply.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"}))
    return pieces


async def by_responses(task: AgentTask) -> int:
    items: list[Any] = []
    pieces = 0
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for question in QUESTIONS:
            items.append({"role": "user", "content": f"In items: {question}"})
            async with client.responses.stream(model=task.model, input=items, max_output_tokens=MOST) as stream:
                pieces += len([event async for event in stream if event.type == "response.output_text.delta"])
                reply = await stream.get_final_response()
            items += [item.model_dump(exclude_none=True) for item in reply.output]
    return pieces


async def by_messages(task: AgentTask) -> int:
    history: list[Any] = []
    pieces = 0
    async with anthropic.AsyncAnthropic(base_url=task.url, api_key=task.api_key) as client:
        for question in QUESTIONS:
            history.append({"role": "user", "content": f"In messages: {question}"})
            async with client.messages.stream(model=task.model, messages=history, max_tokens=MOST) as stream:
                pieces += len([event async for event in stream if event.type == "text"])
                reply = await stream.get_final_message()
            history.append({"role": "assistant", "content": reply.content})
    return pieces


async def test_streams_of_three_dialects_at_once_are_recorded_as_they_were_sampled(
    engine: Engine, store: Store
) -> None:
    pieces: list[int] = []

    async def agent(task: AgentTask) -> float:
        pieces.extend(await asyncio.gather(by_chat(task), by_responses(task), by_messages(task)))
        return 1.0

    record, _, dispatches = await played(store, engine.url, agent)
    assert record.error is None
    assert record.metrics == {"agent_first": 1, "agent_other": 2, "agent_continued": 3}
    assert min(pieces) >= len(QUESTIONS)
    worst, tokens = 0.0, 0
    for dispatch, (prompt, output) in zip(dispatches, trained_ids(dispatches), strict=True):
        assert dispatch.response is not None
        assert dispatch.weight_versions == [(engine.label, len(output))]
        sampled = unpack_floats(dispatch.response.output_logprobs).tolist()
        expected = engine.reference.logprobs(engine.label, prompt, output)
        worst = max([worst, *(abs(a - b) for a, b in zip(sampled, expected, strict=True))])
        tokens += len(output)
    assert worst < EXACT
    print(f"tokens={tokens} worst={worst:.1e} pieces={pieces}")
