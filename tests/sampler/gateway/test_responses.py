"""OpenAI's Responses through the `openai` SDK."""

from typing import Any

import openai
import pytest
from openai.types.responses import Response

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus, Termination
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, played, trained_ids
from tests.sampler.gateway.streaming_engine import StreamingEngine, listening

TOOL = {"type": "function", "strict": True, **ADD["function"]}
THOUGHTFUL = f"<think>\nI add.\n</think>\n\nLet me see.\n{call('add', a=1, b=2)}\n{call('add', b=4, a=3)}"


def client_of(task: AgentTask, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"base_url": task.base_url, "api_key": task.api_key, "max_retries": 0} | options)


async def asked(client: openai.AsyncOpenAI, body: dict[str, Any], *, stream: bool) -> Response:
    if not stream:
        return await client.responses.create(**body)
    async with client.responses.stream(**body) as events:
        text = "".join([event.delta async for event in events if event.type == "response.output_text.delta"])
        response = await events.get_final_response()
    assert text == response.output_text
    return response


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_of_the_sdk_is_one_conversation_of_sampled_ids(store: Store, stream: bool) -> None:
    engine = ScriptedEngine([THOUGHTFUL, call("add", a=3, b=7), "<answer>10</answer>"])
    kinds: list[list[str]] = []

    async def agent(task: AgentTask) -> str:
        system, question = (message["content"] for message in task.messages)
        items: list[Any] = [{"role": "user", "content": question}]
        async with client_of(task) as client:
            while True:
                body = {"model": task.model, "instructions": system, "input": items, "tools": [TOOL], "store": False}
                reply = await asked(client, body, stream=stream)
                assert reply.status == "completed"
                assert reply.usage is not None
                assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens > 0
                kinds.append([item.type for item in reply.output])
                items += [item.model_dump(exclude_none=True) for item in reply.output]
                calls = [item for item in reply.output if item.type == "function_call"]
                if not calls:
                    return reply.output_text
                items += [{"type": "function_call_output", "call_id": one.call_id, "output": "3"} for one in calls]

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert (record.status, record.answer) == (RecordStatus.SCORED, "10")
    assert kinds == [["reasoning", "message", "function_call", "function_call"], ["function_call"], ["message"]]
    assert trained_ids(dispatches) == engine.exchanges
    known = {"agent_first": 1, "agent_continued": 2, "agent_overridden_tools-strict": 3}
    parsed = {"agent_overridden_input-parsed_arguments": 2} if stream else {}  # which the SDK sends back
    assert record.metrics == known | parsed
    assert [(c.name, c.arguments, c.result) for c in dispatches[0].tool_calls] == [
        ("add", {"a": 1, "b": 2}, "3"), ("add", {"b": 4, "a": 3}, "3")
    ]  # fmt: skip


async def test_the_same_conversation_in_two_dialects_is_one_thread(store: Store) -> None:
    engine = ScriptedEngine([THOUGHTFUL, "<answer>3</answer>"])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            body: Any = {"model": task.model, "messages": list(task.messages), "tools": [ADD]}
            message = (await client.chat.completions.create(**body)).choices[0].message
            calls = message.tool_calls or []
            items: list[Any] = [*task.messages, {"role": "assistant", "content": message.content}]
            for one in calls:
                function: Any = one.to_dict()["function"]
                items.append({"type": "function_call", "call_id": one.id, **function})
            items += [{"type": "function_call_output", "call_id": one.id, "output": "3"} for one in calls]
            await client.responses.create(model=task.model, input=items, tools=[TOOL])  # type: ignore[list-item]  # a dict

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert record.metrics == {"agent_first": 1, "agent_continued": 1, "agent_overridden_tools-strict": 1}
    assert trained_ids(dispatches) == engine.exchanges


async def test_a_reply_that_is_cut_is_incomplete(store: Store) -> None:
    engine = ScriptedEngine(["one two three four five six seven eight"])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            reply = await client.responses.create(model=task.model, input="Count.", max_output_tokens=3)
            assert reply.status == "incomplete"
            assert reply.incomplete_details is not None
            assert reply.incomplete_details.reason == "max_output_tokens"

    record, _, _ = await played(store, engine, agent)
    assert record.termination == Termination.LENGTH_LIMIT


async def test_what_is_not_stored_here_is_refused_in_the_sdks_own_classes(store: Store) -> None:
    engine = ScriptedEngine(["<answer>1</answer>"])
    seen: list[str] = []

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client, client_of(task, api_key="sk-other") as stranger:
            for values in (
                {"previous_response_id": "resp_1"},
                {"tools": [{"type": "local_shell"}]},
                {"input": [{"type": "item_reference", "id": "msg_1"}]},
                {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
                {"background": True},
            ):
                body: Any = {"model": task.model, "input": "Hi"} | values
                with pytest.raises(openai.BadRequestError) as caught:
                    await client.responses.create(**body)
                seen.append(caught.value.message)
            with pytest.raises(openai.AuthenticationError):
                await stranger.responses.create(model=task.model, input="Hi")
            await client.responses.create(model=task.model, input="Hi")

    record, _, dispatches = await played(store, engine, agent)
    assert record.status is RecordStatus.SCORED
    assert len(dispatches) == 1
    for message, word in zip(
        seen, ("whole input", "local_shell", "item_reference", "reads texts alone", "background"), strict=True
    ):
        assert word in message


async def test_an_error_in_the_middle_of_a_stream_is_the_sdks_error(store: Store) -> None:
    async with listening(StreamingEngine(["Let me see, now.", "No.", "Yes."], "Let me see,", dies=True)) as engine:
        told: list[str] = []

        async def agent(task: AgentTask) -> None:
            async with client_of(task) as client:
                for _ in range(2):
                    try:
                        async for event in await client.responses.create(model=task.model, input="Hi", stream=True):
                            if event.type in ("error", "response.output_text.done"):
                                told.append(event.to_dict().get("message") or event.to_dict().get("text"))  # type: ignore[arg-type]  # texts
                    except openai.APIError as exc:
                        told.append(str(exc))

        record, _, dispatches = await played(store, engine.url, agent)
    assert record.error is None
    assert ["an engine failed" in text for text in told] == [True, False]
    assert told[1] == "Yes."
    assert trained_ids(dispatches) == engine.exchanges[2:]


@pytest.mark.parametrize("streamed", [False, True])
async def test_tools_in_namespaces_are_called_by_both_names_and_tools_of_the_vendor_are_left_out(
    store: Store, streamed: bool
) -> None:
    """As Codex sends them. A function with a point in its name is no namespace."""
    engine = ScriptedEngine([f"{call('agents.add', a=1, b=2)}\n{call('add.up', a=1, b=2)}", "<answer>3</answer>"])
    inner = {"type": "function", **ADD["function"]}
    spaces = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [inner]}
    tools: Any = [spaces, {**inner, "name": "add.up"}, {"type": "web_search", "external_web_access": True}]

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            body: Any = {"model": task.model, "tools": tools, "input": [{"role": "user", "content": "Hi"}]}
            if streamed:
                events = [event async for event in await client.responses.create(**body, stream=True)]
                items = [event.item.model_dump() for event in events if event.type == "response.output_item.done"]
            else:
                items = [item.model_dump() for item in (await client.responses.create(**body)).output]
            assert [(one.get("namespace"), one["name"]) for one in items] == [("agents", "add"), (None, "add.up")]
            outputs = [{"type": "function_call_output", "call_id": one["call_id"], "output": "3"} for one in items]
            await client.responses.create(**{**body, "input": [*body["input"], *items, *outputs]})

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert record.metrics == {
        "agent_first": 1,
        "agent_continued": 1,
        "agent_overridden_tool_web_search": 2,
        "agent_overridden_tools-description": 2,
    }
    assert [one.name for one in dispatches[0].tool_calls] == ["agents.add", "add.up"]
    assert trained_ids(dispatches) == engine.exchanges
    assert "web_search" not in TEMPLATE.decode(engine.exchanges[0][0])
