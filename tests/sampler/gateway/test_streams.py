"""Streams by token: text reaches the client while the engine samples, and nothing that was told is ever taken back."""

import asyncio
from typing import Any

import anthropic
import openai
import pytest

from sampler.core.parsers import OPENINGS, PARSERS
from sampler.core.parsers.reply import split_reasoning
from sampler.core.rendering.turn import PartialTurn
from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.streaming import ReplyStream, plain_parts, reply_parts
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.fuzz_parsers import VALID
from tests.sampler.gateway.agents import ADD, call, played, trained_ids
from tests.sampler.gateway.streaming_engine import StreamingEngine, listening

THOUGHT = f"<think>\nI add one.\n</think>\n\nLet me see, now. I call it.\n{call('add', a=1, b=2)}"
UNTIL_CONTENT = "<think>\nI add one.\n</think>\n\nLet me see, now. "


async def by_openai(task: AgentTask, seen: "Seen") -> None:
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        body: Any = {"model": task.model, "messages": task.messages, "tools": [ADD], "stream": True}
        async for chunk in await client.chat.completions.create(**body):
            for choice in chunk.choices:
                seen.add(choice.delta.content or "", getattr(choice.delta, "reasoning_content", "") or "")


async def by_anthropic(task: AgentTask, seen: "Seen") -> None:
    async with anthropic.AsyncAnthropic(base_url=task.url, api_key=task.api_key, max_retries=0) as client:
        body: Any = {"model": task.model, "messages": [{"role": "user", "content": task.query}], "max_tokens": 500}
        body["tools"] = [{"name": "add", "input_schema": {"type": "object"}}]
        async with client.messages.stream(**body, thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
            async for event in stream:
                if event.type == "text":
                    seen.add(event.text)
                elif event.type == "thinking":
                    seen.add("", event.thinking)


CLIENTS = [by_openai, by_anthropic]


class Seen:
    """What a client has been told so far. `enough`: the text that is looked for is there."""

    def __init__(self, wanted: str, engine: StreamingEngine) -> None:
        self._wanted, self._engine = wanted, engine
        self.content, self.reasoning = "", ""
        self.pieces = 0

    def add(self, content: str, reasoning: str = "") -> None:
        self.content += content
        self.reasoning += reasoning
        self.pieces += bool(content)
        if self._wanted in self.content:
            self._engine.gate.set()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda f: f.__name__)
async def test_text_comes_while_the_engine_samples(store: Store, client: Any) -> None:
    """The engine goes on only when the client has seen what it sampled so far."""
    async with listening(StreamingEngine([THOUGHT], UNTIL_CONTENT)) as engine:
        seen = Seen("Let me see", engine)
        record, _, dispatches = await played(store, engine.url, lambda task: client(task, seen))
    assert record.error is None
    assert (seen.reasoning, seen.content) == ("I add one.", "Let me see, now. I call it.")
    assert seen.pieces >= 2
    assert trained_ids(dispatches) == engine.exchanges
    assert dispatches[0].weight_versions == [(3, len(engine.exchanges[0][1]))]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda f: f.__name__)
async def test_a_client_that_leaves_in_the_middle_of_a_stream_aborts_its_request(store: Store, client: Any) -> None:
    async with listening(StreamingEngine([THOUGHT, "<answer>4</answer>"], UNTIL_CONTENT)) as engine:

        class Leaves(Seen):
            def add(self, content: str, reasoning: str = "") -> None:
                super().add(content, reasoning)
                if self.content:
                    raise InterruptedError

        async def agent(task: AgentTask) -> None:
            with pytest.raises(InterruptedError):
                await client(task, Leaves("never", engine))
            async with asyncio.timeout(60):
                await engine.aborted.wait()
            await client(task, Seen("", engine))

        record, _, dispatches = await played(store, engine.url, agent)
    assert record.error is None
    assert record.status is RecordStatus.SCORED
    assert record.metrics["agent_cancelled"] == 1
    assert [d.response is None for d in dispatches] == [True, False]
    assert trained_ids(dispatches) == engine.exchanges[1:]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda f: f.__name__)
async def test_an_engine_that_dies_in_a_stream_never_makes_two_replies_one(store: Store, client: Any) -> None:
    """The next engine's reply is another text: the client is told an error, and may ask again."""
    replies = [THOUGHT, "<answer>No.</answer>", "<answer>4</answer>"]
    async with listening(StreamingEngine(replies, UNTIL_CONTENT, dies=True)) as engine:
        told: list[str] = []

        async def agent(task: AgentTask) -> None:
            for _ in range(2):
                seen = Seen("never", engine)
                try:
                    await client(task, seen)
                except (openai.APIError, anthropic.APIError) as exc:
                    told.append(str(exc))
                else:
                    told.append(seen.content)

        record, _, dispatches = await played(store, engine.url, agent)
    assert record.error is None
    assert "an engine failed in the middle of the stream" in told[0]
    assert told[1] == "<answer>4</answer>"
    assert [d.response is None for d in dispatches] == [True, False]
    assert trained_ids(dispatches) == engine.exchanges[2:]


@pytest.mark.parametrize("parser", sorted(PARSERS))
def test_what_is_told_of_a_beginning_is_a_beginning_of_the_reply(parser: str) -> None:
    texts = [f"{before}{valid}{after}" for valid in (*VALID, "a < b [1] {x} 5 </ <t", "é 🙂") for before in
             ("", "I look. \n", "<think>\nHm, <b>.\n</think>\n\nSo: ") for after in ("", "\nDone. ")]  # fmt: skip
    told = 0
    for text in texts:
        stream = ReplyStream("main", OPENINGS[parser])
        contents = []
        for end in range(len(text) + 1):
            stream.hear(PartialTurn("r:0", text[:end], 5, opens_reasoning=False))
            contents.append(stream.content)
        parsed = PARSERS[parser](text, ())
        reasoning, content = reply_parts(text, parsed, stream.content)
        assert not stream.broken
        assert all(content.startswith(one) for one in contents), text
        if text.startswith("<think>") and parsed.content.startswith(stream.content):
            assert reasoning.startswith(stream.reasoning), text
            assert parsed.reasoning == reasoning, text
        told += len(set(contents))
    assert told > 3 * len(texts)


def test_a_reasoning_tag_in_a_call_and_a_second_reasoning_are_sent_with_the_whole_reply() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": "x </think> y"}}</tool_call>'
    for text, told in (
        (call, ("", "")),
        (f"Hm. {call}", ("", "Hm.")),
        ("<think>a</think>b<think>c</think>d", ("a", "b")),
    ):
        assert plain_parts(text, OPENINGS["hermes"]) == told


@pytest.mark.parametrize("in_reasoning", [False, True])
def test_reasoning_that_the_prompt_opened_is_no_content(in_reasoning: bool) -> None:
    text = "I add.\n</think>\n\nIt is 3."
    found = [plain_parts(text[:end], (), in_reasoning=in_reasoning) for end in range(len(text) + 1)]
    assert found[-1] == (split_reasoning(text)[0], "It is 3.")
    assert found[6] == (("I add.", "") if in_reasoning else ("", "I add."))
    assert all(not content for _, content in found[: len("I add.\n</think>")]) == in_reasoning


async def test_a_closing_tag_where_nothing_was_open_is_told_as_text(store: Store) -> None:
    """The client has seen the text before it as content, so it gets the rest as it was sampled."""
    text = "Let me see, now. I add.</think>It is 3."
    async with listening(StreamingEngine([text, "Bye."], "Let me see, now. ")) as engine:
        seen = Seen("Let me see", engine)

        async def agent(task: AgentTask) -> None:
            await by_openai(task, seen)
            history: Any = [*task.messages, {"role": "assistant", "content": seen.content}, *task.messages[-1:]]
            client = openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)
            body: Any = {"model": task.model, "messages": history, "tools": [ADD]}
            async with client, client.chat.completions.stream(**body) as stream:
                await stream.until_done()

        async with asyncio.timeout(60):
            record, _, dispatches = await played(store, engine.url, agent)
    assert record.error is None
    assert seen.content == text
    assert record.metrics == {"agent_first": 1, "agent_continued": 1}
    assert trained_ids(dispatches) == engine.exchanges
