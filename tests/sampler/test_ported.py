"""A sampler as it is written for AgentRL plays here: whole histories, OpenAI's answers, several calls at once."""

import asyncio
import base64
import json
import logging
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sampler import ChatPort, PortedSampler
from sampler.core.episode.episode import play
from sampler.environments.pixels import image_file
from shared.documents import TaskPayload
from shared.documents.states import BranchCause
from shared.episodes.state import EpisodeState
from shared.store import Store
from tandem.audit.run import audit
from tests.sampler.episodes import ended, resources
from tests.sampler.seeing import seeing_template, seen_worlds
from tests.sampler.threads import HeldEngine
from tests.shared.builders import claim, make_task

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "from_agentrl.md").read_text(encoding="utf-8")
CALL = 'I look.\n<tool_call>\n{"name": "lookup", "arguments": {"x": "é"}}\n</tool_call>'


class Reflecting(ChatPort):
    """Asks, keeps the answer as the client gives it, asks again with all of it, and tries three drafts at once."""

    async def run(self, task: Any) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "Solve it."},
            {"role": "user", "content": f"Put the answer in a box.\n{task.problem}"},
        ]
        response = await self.create_chat_completions(messages=messages, temperature=0.7, repeat_penalty=1.2)
        assert response.choices[0].message.tool_calls is not None
        for call in response.choices[0].message.tool_calls:
            assert json.loads(call.function.arguments) == {"x": "é"}  # type: ignore[union-attr]  # it is there
        messages.append(response.choices[0].message.model_dump())
        messages += [
            {"role": "tool", "tool_call_id": c.id, "content": "5"} for c in response.choices[0].message.tool_calls
        ]
        response = await self.create_chat_completions(messages=messages, temperature=0.7)
        messages.append({"role": "assistant", "content": response.choices[0].message.content})
        ends = [{"role": "user", "content": f"And {k}?"} for k in range(3)]
        drafts = await asyncio.gather(*(self.create_chat_completions([*messages, end]) for end in ends))
        self.record.meta_infos["pred_ans"] = [draft.choices[0].message.content for draft in drafts]

    async def evaluate_record(self, record: Any) -> float:
        return 1.0 if record.task.answer == "4" else 0.0


class Reflected(PortedSampler):
    port = Reflecting


async def test_a_ported_sampler_plays_and_nothing_is_sent_twice(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(0, num_generations=1)
    payload = TaskPayload(query="?", answer="4", metadata={"problem": "2+2?"})
    await store.tasks.insert_new([task.model_copy(update={"payload": payload})])
    engine = HeldEngine(lambda number: CALL if number == 0 else f"reply {number}")
    async with resources(store, engine, tool_call_parser="hermes") as shared:
        with caplog.at_level(logging.WARNING):
            sampler = Reflected(shared, await claim(store))
            assert await play(sampler) == 1.0
    record, _, dispatches = await ended(store, sampler)
    state = engine.check(record, dispatches)
    assert [d.branch_cause for d in dispatches[:3]] == [BranchCause.CLEAN] * 3
    assert [[m["role"] for m in d.messages] for d in dispatches[:3]] == [["system", "user"], ["tool"], ["user"]]
    assert [(c.name, c.arguments, c.result) for c in dispatches[0].tool_calls] == [("lookup", {"x": "é"}, "5")]
    whole = [*engine.prompts[1], *engine.outputs[1]]
    for draft in dispatches[2:]:
        assert engine.prompts[draft.turn][: len(whole)] == whole, "no reply is encoded again"
    assert [(thread.name, len(thread.turns)) for thread in state.threads] == [(None, 3), ("2", 1), ("3", 1)]
    assert record.reward_details["pred_ans"] == ["reply 2", "reply 3", "reply 4"]
    told = [message for message in caplog.messages if "ignored parameters" in message]
    assert len(told) == 1
    assert "ignored parameters=temperature,repeat_penalty of=Reflecting" in told[0]
    assert (await audit(store, running=True)).ok


class Endless(ChatPort):
    async def run(self, task: Any) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.query}]
        while True:
            response = await self.create_chat_completions(messages)
            messages += [response.choices[0].message.model_dump(), {"role": "user", "content": "Go on."}]


class WithoutEnd(PortedSampler):
    port = Endless


async def test_a_ported_sampler_that_fills_the_context_ends_there_and_the_tasks_scorer_scores_it(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    async with resources(store, HeldEngine(lambda number: "<answer>4</answer>"), max_tokens=300) as shared:
        sampler = WithoutEnd(shared, await claim(store))
        assert await play(sampler) == 1.0
    record, _, dispatches = await ended(store, sampler)
    assert record.termination == "length_limit"
    assert len(dispatches) > 3
    assert EpisodeState(record, dispatches).problems == []


class Pictures(ChatPort):
    """Its tool answers with an image."""

    async def run(self, task: Any) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.query}]
        response = await self.create_chat_completions(messages)
        messages.append(response.choices[0].message.model_dump())
        image = {"type": "image", "base64": base64.b64encode(image_file([[7] * 56] * 56)).decode()}
        (call,) = response.choices[0].message.tool_calls or ()
        messages.append({"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "page"}, image]})
        await self.create_chat_completions(messages)

    async def evaluate_record(self, record: Any) -> float:
        return 1.0


class PicturesSampler(PortedSampler):
    port = Pictures


async def test_a_tools_answer_with_an_image_is_recorded_without_its_bytes(store: Store, tmp_path: Path) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    template = seeing_template(tmp_path)
    said = ['<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>', "done"]
    async with seen_worlds(store, template, lambda number: said[min(number, 1)], tool_call_parser="hermes") as (
        shared,
        engine,
    ):
        sampler = PicturesSampler(shared, await claim(store))
        assert await play(sampler) == 1.0
    _, _, dispatches = await ended(store, sampler)
    assert (len(engine.files(1)), dispatches[0].tool_calls[0].result) == (1, "page")
    assert "base64" not in str(dispatches)


class Patient(ChatPort):
    """Leaves a request that takes too long, and sends the same history again."""

    engine: ClassVar[HeldEngine]

    async def run(self, task: Any) -> None:
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.query}]
        response = await self.create_chat_completions(messages)
        messages.append(response.choices[0].message.model_dump())
        messages += [
            {"role": "tool", "tool_call_id": c.id, "content": "5"} for c in response.choices[0].message.tool_calls
        ]
        left = asyncio.create_task(self.create_chat_completions(messages))
        await self.engine.until_asked(2)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        self.engine.silent.clear()
        await self.create_chat_completions(messages)


class PatientSampler(PortedSampler):
    port = Patient


async def test_a_ported_sampler_may_send_a_request_again_after_a_time_out(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    engine = Patient.engine = HeldEngine(lambda number: CALL if number == 0 else "<answer>4</answer>")
    engine.silent = {1}
    async with resources(store, engine, tool_call_parser="hermes") as shared:
        sampler = PatientSampler(shared, await claim(store))
        assert await play(sampler) == 1.0
    record, _, dispatches = await ended(store, sampler)
    engine.check(record, dispatches)
    assert [d.status.value for d in dispatches] == ["completed", "failed", "completed"]
    assert [len(d.tool_calls) for d in dispatches] == [1, 0, 0]


async def test_the_port_of_the_page_plays(store: Store) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"__name__": "docs_ported"}
    exec(block, names)
    task = make_task(0, num_generations=1)
    payload = TaskPayload(query="?", answer="4", metadata={"problem": "2+2?"})
    await store.tasks.insert_new([task.model_copy(update={"payload": payload})])
    async with resources(store, HeldEngine(lambda number: "It is \\boxed{4}")) as shared:
        assert await play(names["Math"](shared, await claim(store))) == 1.0
