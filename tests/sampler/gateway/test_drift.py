"""Agents change their own histories. Every trained id was sampled after exactly its prompt all the same, and a sampled reply is
never encoded again."""

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sampler.gateway.agent_sampler import AgentTask
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.episodes import TEMPLATE
from tests.sampler.gateway.agents import ADD, ScriptedEngine, call, odd_ids, played, trained_ids

Messages = list[dict[str, Any]]
THOUGHT = f"<think>\nI add.\n</think>\n\nLet me see.\n{call('add', a=1, b=2)}"
SYSTEM = {"role": "system", "content": "You add.\nBe brief."}
QUESTION = {"role": "user", "content": "1+2?"}
SECOND = {"role": "user", "content": "And 3+4?"}


async def ask(client: httpx.AsyncClient, messages: Messages, **values: Any) -> dict[str, Any]:
    body = {"model": "main", "tools": [ADD], "messages": messages} | values
    answer = await client.post("/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0]["message"])


def client_of(task: AgentTask) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=task.url, headers={"Authorization": f"Bearer {task.api_key}"})


def result_of(message: dict[str, Any], text: str = "3") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


def quiet(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def contains(prompt: list[int], reply: list[int]) -> bool:
    body = reply[:-1]  # some templates write the end of a turn themselves
    return any(prompt[at : at + len(body)] == body for at in range(len(prompt) - len(body) + 1))


def reordered(message: dict[str, Any]) -> None:
    function = message["tool_calls"][0]["function"]
    found = json.loads(function["arguments"])
    function["arguments"] = json.dumps(dict(reversed(found.items())), indent=2)


def without_reasoning(message: dict[str, Any]) -> None:
    del message["reasoning_content"]


def in_blocks(message: dict[str, Any]) -> None:
    message["content"] = [{"type": "text", "text": message["content"]}]


def with_blanks(message: dict[str, Any]) -> None:
    message["content"] = f" {message['content']}\n"


def with_nulls(message: dict[str, Any]) -> None:
    message |= {"refusal": None, "audio": None, "function_call": None, "annotations": []}


def with_other_ids(message: dict[str, Any]) -> None:
    message["tool_calls"][0]["id"] = "call_of_the_client"


@pytest.mark.parametrize(
    "change",
    [reordered, without_reasoning, in_blocks, with_blanks, with_nulls, with_other_ids],
    ids=lambda f: f.__name__,
)
async def test_a_reply_that_says_the_same_keeps_its_ids(store: Store, change: Callable[[dict[str, Any]], None]) -> None:
    engine = ScriptedEngine([THOUGHT, "It is 3.", "It is 7."])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            first = await ask(client, [SYSTEM, QUESTION])
            change(first)
            history = [SYSTEM, QUESTION, first, result_of(first)]
            history.append(await ask(client, history))
            await ask(client, [*history, SECOND])

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert trained_ids(dispatches) == engine.exchanges
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    assert contains(engine.exchanges[1][0], engine.exchanges[0][1])


@pytest.mark.parametrize(
    ("change", "cause", "kept"),
    [
        (lambda h: [SYSTEM, QUESTION, {"role": "assistant", "content": "It is three."}, SECOND], "rewritten", []),
        (lambda h: [SYSTEM, *h[2:], SECOND], "shortened", [0, 1]),
        (lambda h: [{**SYSTEM, "content": "You multiply."}, h[1], quiet(h[2]), *h[3:], SECOND], "system", [0, 1]),
        (lambda h: [SYSTEM, {"role": "user", "content": "So far: 1+2 is 3. And 3+4?"}], "other", []),
        (lambda h: h[:-1], "again", [0]),
        (lambda h: [*h, {"role": "user", "content": "Same again: "}, h[-1], SECOND], "shortened", [0, 1]),
    ],
    ids=["rewritten", "shortened", "system", "compacted", "again", "a reply twice"],
)
async def test_another_history_is_another_branch_in_which_sampled_replies_keep_their_ids(
    store: Store, change: Callable[[Messages], Messages], cause: str, kept: list[int]
) -> None:
    engine = ScriptedEngine([THOUGHT, "It is 3.", "It is 7.", "Bye."])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            first = await ask(client, [SYSTEM, QUESTION])
            history = [SYSTEM, QUESTION, first, result_of(first)]
            history.append(await ask(client, history))
            other = change(copy.deepcopy(history))
            other.append(await ask(client, other))
            await ask(client, [*history, SECOND])  # and back again

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert trained_ids(dispatches) == engine.exchanges
    assert record.metrics.pop(f"agent_{cause}", 0) >= 1
    assert [contains(engine.exchanges[2][0], engine.exchanges[at][1]) for at in (0, 1)] == [at in kept for at in (0, 1)]
    before = [*engine.exchanges[1][0], *engine.exchanges[1][1]]
    assert engine.exchanges[3][0][: len(before)] == before


async def test_parallel_sub_agents_have_threads_with_their_own_tools(store: Store) -> None:
    def replies(prompt: str) -> str:
        return "Done." if "<tool_response>" in prompt or "count" in prompt else call("add", a=1, b=len(prompt))

    engine = ScriptedEngine(replies)
    count = copy.deepcopy(ADD)
    count["function"]["name"] = "count"

    async def sub_agent(client: httpx.AsyncClient, name: str) -> None:
        opening = [{"role": "system", "content": f"You are {name}."}, {"role": "user", "content": f"1+2, {name}?"}]
        first = await ask(client, opening)
        history = [*opening, first, result_of(first)]
        history.append(await ask(client, history))
        await ask(client, [*history, SECOND], tools=[count])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            await asyncio.gather(*(sub_agent(client, f"number {number}") for number in range(8)))

    record, _, dispatches = await played(store, engine, agent, max_turns=30)
    assert record.error is None
    assert record.status is RecordStatus.SCORED
    assert sorted(trained_ids(dispatches)) == sorted(engine.exchanges)
    assert record.metrics == {"agent_first": 1, "agent_other": 7, "agent_continued": 8, "agent_tools": 8}
    assert sum(len(d.tool_calls) for d in dispatches) == 8
    assert len({d.thread for d in dispatches}) == 16


@pytest.mark.parametrize("lines", [0, 1])
async def test_a_system_prompt_whose_head_changes_is_the_same_conversation_if_the_settings_say_so(
    store: Store, lines: int
) -> None:
    engine = ScriptedEngine([THOUGHT, "It is 3."])

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            system = [{"role": "system", "content": f"Request {number}.\nYou add."} for number in range(2)]
            first = await ask(client, [system[0], QUESTION])
            await ask(client, [system[1], QUESTION, first, result_of(first)])

    record, _, dispatches = await played(store, engine, agent, agent_head_lines=lines)
    assert trained_ids(dispatches) == engine.exchanges
    assert record.metrics == {"agent_first": 1, "agent_continued" if lines else "agent_system": 1}
    assert contains(engine.exchanges[1][0], engine.exchanges[0][1])


async def test_the_same_words_in_two_conversations_are_each_ones_own_reply(store: Store) -> None:
    """Both begin with a reply of the same words; its ids differ."""
    engine = ScriptedEngine([TEMPLATE.encode("Hello."), odd_ids("Hello."), "A", "B"])
    openings = [[{"role": "user", "content": name}] for name in ("a", "b")]

    async def agent(task: AgentTask) -> None:
        async with client_of(task) as client:
            firsts = [await ask(client, opening) for opening in openings]
            for opening, first in zip(openings, firsts, strict=True):
                await ask(client, [{"role": "system", "content": "New."}, *opening, first, SECOND])

    record, _, dispatches = await played(store, engine, agent)
    assert record.error is None
    assert trained_ids(dispatches) == engine.exchanges
    replies = [reply for _, reply in engine.exchanges]
    assert replies[0] != replies[1]
    for at in (0, 1):
        assert [contains(engine.exchanges[2 + at][0], reply) for reply in replies[:2]] == [at == 0, at == 1]
