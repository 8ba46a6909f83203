"""A reply with characters that texts from outside may not have is the model's act: its agent can send it back."""

from typing import Any

import httpx
import pytest

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, played, trained_ids
from tests.sampler.gateway.test_prefix import text_of

REPLY = "one \0 two"
QUESTION, NEXT = "3 and 4?", "Sure?"


def _items(reply: str | None) -> list[dict[str, Any]]:
    history = [{"role": "user", "content": QUESTION}]
    return (
        history
        if reply is None
        else [*history, {"role": "assistant", "content": reply}, {"role": "user", "content": NEXT}]
    )


def _contents(reply: str | None) -> list[dict[str, Any]]:
    roles = {"user": "user", "assistant": "model"}
    return [{"role": roles[item["role"]], "parts": [{"text": item["content"]}]} for item in _items(reply)]


BODIES = {
    "/v1/chat/completions": lambda reply: {"model": "main", "messages": _items(reply)},
    "/v1/responses": lambda reply: {"model": "main", "input": _items(reply)},
    "/v1/messages": lambda reply: {"model": "main", "max_tokens": 90, "messages": _items(reply)},
    "/v1beta/models/main:generateContent": lambda reply: {"contents": _contents(reply)},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_sampled_nul_is_sent_back_with_its_sampled_ids(store: Store, path: str) -> None:
    engine = ScriptedEngine([REPLY, "<answer>7</answer>"])

    async def agent(task: AgentTask) -> None:
        keys = {"authorization": f"Bearer {task.api_key}"}
        async with httpx.AsyncClient(base_url=task.url, headers=keys, timeout=60) as client:
            first = await client.post(path, json=BODIES[path](None))
            assert text_of(first.json()) == REPLY
            second = await client.post(path, json=BODIES[path](text_of(first.json())))
            assert second.status_code == 200, second.text

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert record.status is RecordStatus.SCORED
    assert record.metrics == {"agent_first": 1, "agent_continued": 1}
    assert trained_ids(dispatches) == engine.exchanges
    prompt, reply = engine.exchanges[0]
    assert engine.exchanges[1][0][: len(prompt) + len(reply)] == [*prompt, *reply]
