"""What a request says of its reply's end and of its calls: texts at which it stops, and no calls where no tools are."""

from typing import Any

import httpx
import pytest

from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.streaming import first_stop, plain_parts
from shared.documents.states import DispatchStatus, RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, played, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks
from tests.sampler.gateway.streaming_engine import StreamingEngine, listening

REACT = "Thought: I add.\nAction: add\nObservation: 7\n<answer>7</answer>"
STOPPED = "Thought: I add.\nAction: add\n"
STOPS = ["Observation:", "Never"]
HI = "Hi"
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "main", "messages": [{"role": "user", "content": HI}], "stop": STOPS}),
    ("/v1/messages", {"model": "main", "max_tokens": 90, "messages": [{"role": "user", "content": HI}], "stop_sequences": STOPS}),
    ("/v1beta/models/main:generateContent",
     {"contents": [{"parts": [{"text": HI}]}], "generationConfig": {"stopSequences": STOPS}}),
]  # fmt: skip


async def posted(task: AgentTask, path: str, body: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {task.api_key}"}
    async with httpx.AsyncClient(base_url=task.url, headers=headers, timeout=60) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]  # JSON of our own


def told(reply: dict[str, Any]) -> tuple[str, Any]:
    """Text, and why it ended."""
    if "choices" in reply:
        return reply["choices"][0]["message"]["content"], reply["choices"][0]["finish_reason"]
    if "candidates" in reply:
        return reply["candidates"][0]["content"]["parts"][0]["text"], reply["candidates"][0]["finishReason"]
    return reply["content"][0]["text"], (reply["stop_reason"], reply["stop_sequence"])


async def test_a_reply_ends_at_a_stop_and_the_conversation_goes_on_with_its_ids(store: Store) -> None:
    engine = ScriptedEngine([REACT] * 3 + ["<answer>7</answer>"])
    ends: list[Any] = []

    async def agent(task: AgentTask) -> None:
        for path, body in ASKED:
            text, why = told(await posted(task, path, body))
            assert text == STOPPED
            ends.append(why)
        path, body = ASKED[0]
        turn = [{"role": "assistant", "content": STOPPED.strip()}, {"role": "user", "content": "Observation: 8"}]
        await posted(task, path, body | {"messages": [*body["messages"], *turn]})

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert ends == ["stop", ("stop_sequence", "Observation:"), "STOP"]
    assert record.metrics == {"agent_first": 1, "agent_again": 2, "agent_continued": 1}
    assert trained_ids(dispatches) == engine.exchanges
    prompt, reply = engine.exchanges[2]
    assert engine.exchanges[3][0][: len(prompt) + len(reply)] == [*prompt, *reply], "the sampled ids, with the stop's"
    assert [one["stop"] for one in engine.params[:3]] == [STOPS] * 3
    assert dispatches[0].response is not None
    assert dispatches[0].response.text.endswith("Observation:")


async def test_a_stream_tells_nothing_of_a_stop(store: Store) -> None:
    async with listening(StreamingEngine([REACT.partition(" 7")[0]], "Thought: I")) as engine:
        engine.gate.set()
        seen: list[str] = []

        async def agent(task: AgentTask) -> None:
            import openai

            async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
                body: Any = ASKED[0][1] | {"model": task.model, "stream": True}
                async for chunk in await client.chat.completions.create(**body):
                    seen.append(chunk.choices[0].delta.content or "")

        record, _, _ = await played(store, engine.url, agent)
    assert record.error is None
    assert "".join(seen) == STOPPED


@pytest.mark.parametrize("end", range(len(REACT) + 1))
def test_what_a_stream_tells_is_never_taken_back(end: int) -> None:
    _, content = plain_parts(REACT[:end], (), stops=STOPS)
    assert first_stop(REACT, STOPS)[1].startswith(content)


@pytest.mark.parametrize("stream", [False, True])
async def test_no_call_is_made_of_a_reply_to_a_request_that_allows_none(store: Store, stream: bool) -> None:
    looks_like_one = f"See:\n{call('add', a=1, b=2)}"
    engine = ScriptedEngine([looks_like_one] * 3)
    hi: dict[str, Any] = {"messages": [{"role": "user", "content": HI}], "stream": stream}
    seen: list[Any] = []

    async def agent(task: AgentTask) -> None:
        import openai

        async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
            for more in ({}, {"tools": [ADD], "tool_choice": "none"}, {"tools": [ADD]}):
                body: Any = hi | {"model": task.model} | more
                if stream:
                    body.pop("stream")
                    async with client.chat.completions.stream(**body) as events:
                        message = (await events.get_final_completion()).choices[0].message
                else:
                    message = (await client.chat.completions.create(**body)).choices[0].message
                seen.append((message.content, len(message.tool_calls or ())))

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert seen == [(looks_like_one, 0), (looks_like_one, 0), ("See:", 1)]
    assert [one.status for one in dispatches] == [DispatchStatus.COMPLETED] * 3
    assert [one.client is not None and one.client.without_calls for one in dispatches] == [False, True, False]
    assert trained_ids(dispatches) == engine.exchanges


async def test_another_process_knows_that_a_reply_had_no_calls_and_where_it_stopped(store: Store) -> None:
    await tasks(store)
    body = ASKED[0][1] | {"tools": [ADD], "tool_choice": "none"}
    text = f"{call('add', a=1)} Observation: 3"
    async with gateway(store, ScriptedEngine([text])) as a, gateway(store, ScriptedEngine(["<answer>7</answer>"])) as b:
        offer = await a.claim()
        keys = {"authorization": f"Bearer {offer['api_key']}"}
        first = (await a.http.post("/v1/chat/completions", json=body, headers=keys)).json()
        message = first["choices"][0]["message"]
        assert (message["content"], message.get("tool_calls")) == (f"{call('add', a=1)} ", None)
        again = [
            *body["messages"],
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": "So?"},
        ]
        answer = await b.http.post("/v1/chat/completions", json=body | {"messages": again}, headers=keys)
        assert answer.status_code == 200, answer.text
        done = (await b.finish(offer["api_key"], score=1)).json()
        assert done["status"] == RecordStatus.SCORED.value
    record, dispatches = await documents(store, offer["record"])
    assert record.metrics["agent_continued"] == 1
    assert [len(one.response.message.get("tool_calls") or ()) for one in dispatches if one.response] == [0, 0]
