"""The gateway through the `openai` SDK: an agent of its own plays an episode, and every id is the engine's."""

import asyncio
from typing import Any

import openai
import pytest

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, played, trained_ids

PARALLEL = f"I add.\n{call('add', a=1, b=2)}\n{call('add', b=4, a=3)}"


def client_of(task: AgentTask, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"base_url": task.base_url, "api_key": task.api_key, "max_retries": 0} | options)


def asked(task: AgentTask, **values: Any) -> dict[str, Any]:
    return {"model": task.model, "messages": task.messages} | values


async def react(task: AgentTask, *, stream: bool = False) -> None:
    """The usual loop, as every framework has it: the whole history each time, calls as the SDK gave them."""
    async with client_of(task) as client:
        messages: list[Any] = list(task.messages)
        while True:
            message = await (streamed if stream else whole)(client, task.model, messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return
            for one in message["tool_calls"]:
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": "3"})


async def whole(client: openai.AsyncOpenAI, model: str, messages: list[Any]) -> dict[str, Any]:
    reply = await client.chat.completions.create(model=model, messages=messages, tools=[ADD])
    choice = reply.choices[0]
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens > 0
    return choice.message.model_dump(exclude_none=True)


async def streamed(client: openai.AsyncOpenAI, model: str, messages: list[Any]) -> dict[str, Any]:
    async with client.chat.completions.stream(
        model=model, messages=messages, tools=[ADD], stream_options={"include_usage": True}
    ) as stream:
        reply = await stream.get_final_completion()
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 0
    return reply.choices[0].message.model_dump(exclude_none=True, exclude={"parsed"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_react_loop_of_the_sdk_is_one_conversation_of_sampled_ids(store: Store, stream: bool) -> None:
    engine = ScriptedEngine([PARALLEL, call("add", a=3, b=7), "<answer>10</answer>"])

    async def agent(task: AgentTask) -> None:
        await react(task, stream=stream)

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert (record.status, record.termination) == (RecordStatus.SCORED, Termination.ANSWERED)
    assert trained_ids(dispatches) == engine.exchanges
    assert [d.parent for d in dispatches] == [None, dispatches[0].id, dispatches[1].id]
    for before, after in zip(engine.exchanges, engine.exchanges[1:], strict=False):
        assert after[0][: len(before[0]) + len(before[1])] == [*before[0], *before[1]]
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    first = [(c.name, c.arguments, c.result, c.is_error) for c in dispatches[0].tool_calls]
    assert first == [("add", {"a": 1, "b": 2}, "3", False), ("add", {"b": 4, "a": 3}, "3", False)]
    assert len(dispatches[1].tool_calls) == 1


async def test_errors_have_the_sdks_own_classes(store: Store) -> None:
    engine = ScriptedEngine(["<answer>1</answer>"])
    seen: dict[str, Any] = {}

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client, client_of(task, api_key="sk-other") as stranger:

            async def ask(name: str, kind: type[openai.APIStatusError], who: Any = client, **values: Any) -> None:
                body = {"model": task.model, "messages": task.messages} | values
                with pytest.raises(kind) as caught:
                    await who.chat.completions.create(**body)
                seen[name] = caught.value

            await ask("key", openai.AuthenticationError, stranger)
            await ask("model", openai.NotFoundError, model="gpt-9")
            image = {"type": "image_url", "image_url": {"url": "data:,"}}
            await ask("image", openai.BadRequestError, messages=[{"role": "user", "content": [image]}])
            await ask("n", openai.BadRequestError, n=2)
            await ask("long", openai.BadRequestError, messages=[{"role": "user", "content": "word " * 9000}])
            models = [model.id async for model in client.models.list()]
            assert models == [task.model]
            await client.chat.completions.create(**asked(task))

    record, _, dispatches = await played(store, engine, agent)
    assert record.status is RecordStatus.SCORED
    assert seen["key"].code == "invalid_api_key"
    assert seen["model"].code == "model_not_found"
    assert "messages[0].content[0].image_url.url: an image, and model 'main' reads texts alone" in seen["image"].message
    assert seen["long"].code == "context_length_exceeded"
    assert len(dispatches) == 1


async def test_a_reply_is_cut_at_max_tokens_and_parameters_that_change_the_distribution_are_counted(
    store: Store,
) -> None:
    engine = ScriptedEngine(["one two three four five six seven eight"])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            reply = await client.chat.completions.create(
                **asked(task, max_tokens=3, top_p=0.1, temperature=0.0, stop=["\n"])
            )
            assert reply.choices[0].finish_reason == "length"
            assert reply.usage.completion_tokens == 3

    record, _, _ = await played(store, engine, agent)
    assert record.termination == Termination.LENGTH_LIMIT
    assert (engine.params[0]["temperature"], engine.params[0]["top_p"]) == (1.0, 1.0)
    counted = {"agent_overridden_temperature", "agent_overridden_top_p", "agent_first"}
    assert set(record.metrics) == counted


async def test_refused_parameters_are_an_error_of_the_request(store: Store) -> None:
    engine = ScriptedEngine(["<answer>1</answer>"])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            with pytest.raises(openai.BadRequestError, match="top_p: refused"):
                await client.chat.completions.create(**asked(task, top_p=0.1))
            await client.chat.completions.create(**asked(task, top_p=1))

    record, _, _ = await played(store, engine, agent, agent_parameters="refuse")
    assert record.status is RecordStatus.SCORED


async def test_a_client_that_leaves_aborts_its_request_and_may_go_on(store: Store) -> None:
    slow = ScriptedEngine(["<answer>1</answer>", "<answer>2</answer>"], delay_s=3600)

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            body: Any = {"model": task.model, "messages": task.messages}
            asking = asyncio.create_task(client.chat.completions.create(**body))
            await slow.asked.wait()
            asking.cancel()
            await slow.aborted.wait()
            slow._delay_s = 0
            await client.chat.completions.create(**body)

    record, _, dispatches = await played(store, slow, agent)
    assert record.error is None
    assert record.metrics["agent_cancelled"] == 1
    assert [d.response is None for d in dispatches] == [True, False]
    assert trained_ids(dispatches) == slow.exchanges[1:]


async def test_a_repeated_request_gets_the_same_reply_only_if_the_client_says_so(store: Store) -> None:
    engine = ScriptedEngine([f"<answer>{number}</answer>" for number in range(3)])
    texts = []

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            for headers in (
                {},
                {"x-stainless-retry-count": "1"},
                {},
                {"Idempotency-Key": "a"},
                {"Idempotency-Key": "a"},
            ):
                body: Any = {"model": task.model, "messages": task.messages, "extra_headers": headers}
                texts.append((await client.chat.completions.create(**body)).choices[0].message.content)

    record, _, dispatches = await played(store, engine, agent)
    assert texts == [f"<answer>{number}</answer>" for number in (0, 0, 1, 2, 2)]
    assert trained_ids(dispatches) == engine.exchanges
    assert record.metrics == {"agent_first": 1, "agent_again": 2, "agent_replayed": 2}
