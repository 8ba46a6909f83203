"""The gateway through the `anthropic` SDK."""

from typing import Any

import anthropic
import pytest

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, played, trained_ids

TOOL: Any = {
    "name": "add",
    "description": ADD["function"]["description"],
    "input_schema": ADD["function"]["parameters"],
    "cache_control": {"type": "ephemeral"},
}
HI = [{"role": "user", "content": "Hi"}]
THOUGHTFUL = f"<think>\nI add.\n</think>\n\nLet me see.\n{call('add', a=1, b=2)}\n{call('add', b=4, a=3)}"


def client_of(task: AgentTask, **options: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(**{"base_url": task.url, "api_key": task.api_key, "max_retries": 0} | options)


def body_of(task: AgentTask, messages: list[Any], **values: Any) -> dict[str, Any]:
    system = [{"type": "text", "text": task.messages[0]["content"], "cache_control": {"type": "ephemeral"}}]
    return {"model": task.model, "system": system, "messages": messages, "tools": [TOOL], "max_tokens": 500, **values}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
async def test_a_loop_of_the_sdk_is_one_conversation_of_sampled_ids(store: Store, stream: bool, thinking: bool) -> None:
    engine = ScriptedEngine([THOUGHTFUL, call("add", a=3, b=7), "<answer>10</answer>"])
    kinds: list[list[str]] = []

    async def agent(task: AgentTask) -> str:
        async with client_of(task) as client:
            messages: list[Any] = [{"role": "user", "content": task.query}]
            options = {"thinking": {"type": "enabled", "budget_tokens": 1024}} if thinking else {}
            while True:
                body = body_of(task, messages, **options)
                counted = await client.messages.count_tokens(
                    **{name: value for name, value in body.items() if name != "max_tokens"}
                )
                if stream:
                    async with client.messages.stream(**body) as events:
                        reply = await events.get_final_message()
                else:
                    reply = await client.messages.create(**body)
                usage = reply.usage
                read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
                assert abs(counted.input_tokens - read) <= 200  # replies have other ids than the template would give
                assert usage.output_tokens > 0
                kinds.append([block.type for block in reply.content])
                messages.append({"role": "assistant", "content": reply.content})
                calls = [block for block in reply.content if block.type == "tool_use"]
                assert reply.stop_reason == ("tool_use" if calls else "end_turn")
                if not calls:
                    return next(block.text for block in reply.content if block.type == "text")
                messages.append({"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": block.id, "is_error": block.input == {"a": 1, "b": 2},
                     "content": [{"type": "text", "text": "3"}]} for block in calls
                ]})  # fmt: skip

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert record.status is RecordStatus.SCORED
    assert record.answer == "10"
    assert trained_ids(dispatches) == engine.exchanges
    used = {name: count for name, count in record.metrics.items() if not name.startswith("agent_overridden")}
    assert used == {"agent_first": 1, "agent_continued": 2}
    assert record.metrics["agent_overridden_tools-cache_control"] == 3
    assert kinds[0] == [*["thinking"] * thinking, "text", "tool_use", "tool_use"]
    assert [(c.arguments, c.result, c.is_error) for c in dispatches[0].tool_calls] == [
        ({"a": 1, "b": 2}, "3", True), ({"b": 4, "a": 3}, "3", False)
    ]  # fmt: skip


async def test_errors_have_the_sdks_own_classes(store: Store) -> None:
    engine = ScriptedEngine(["<answer>1</answer>"])
    seen: dict[str, str] = {}

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client, client_of(task, api_key="sk-other") as stranger:

            async def ask(kind: type[anthropic.APIStatusError], who: Any = client, **values: Any) -> str:
                with pytest.raises(kind) as caught:
                    await who.messages.create(**body_of(task, values.pop("messages", HI), **values))
                assert isinstance(caught.value.body, dict)
                assert caught.value.body["type"] == "error"
                return str(caught.value.body["error"]["type"])

            seen["key"] = await ask(anthropic.AuthenticationError, stranger)
            seen["model"] = await ask(anthropic.NotFoundError, model="claude-9")
            seen["tool"] = await ask(anthropic.BadRequestError, tools=[{"type": "bash_20250124", "name": "bash"}])
            search: Any = [{"type": "web_search_20250305", "name": "web_search"}]
            long = [{"role": "user", "content": "word " * 9000}]
            seen["long"] = await ask(anthropic.BadRequestError, messages=long)
            await client.messages.create(**body_of(task, HI, tools=search))

    record, _, _ = await played(store, engine, agent)
    assert record.status is RecordStatus.SCORED
    assert record.metrics["agent_overridden_tool_web_search"] == 1
    assert seen == {
        "key": "authentication_error",
        "model": "not_found_error",
        "tool": "invalid_request_error",
        "long": "invalid_request_error",
    }
