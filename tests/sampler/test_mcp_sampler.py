"""Whole episodes of the standard sampler: a scripted engine at the transport, a real tool server, a real database."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pymongo import AsyncMongoClient

from sampler.core.api_models import Agents
from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from sampler.core.episode.episode import play
from sampler.core.episode.opening import INSTRUCTIONS
from sampler.core.episode.resources import Resources
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.parsers import get_parser
from sampler.core.tools import ToolCatalog, ToolServer
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.documents import DispatchedSamplingTask, TaskPayload
from shared.documents.states import DispatchStatus, RecordStatus, SlotStatus, Termination
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.audit.report import Check
from tandem.audit.run import audit
from tests.late_commands import Recorder
from tests.sampler import episodes
from tests.sampler.agents.agents import browser
from tests.sampler.agents.endpoints import endpoint
from tests.sampler.chats import chat
from tests.sampler.engines import STOP, Engines, Up, answer
from tests.shared.builders import claim, import_tasks, make_task

TEMPLATE = chat("qwen")
BOX = ToolServer(
    name="box", command=sys.executable, args=(str(Path(__file__).parent / "tool_servers" / "box.py"), "stdio")
)
NO_AGENTS = Agents()
END = TEMPLATE.encode("<|im_end|>")


def said(text: str) -> httpx.Response:
    ids = TEMPLATE.encode(text) + END
    return answer(ids, {"type": "stop", "matched": END[0]} | STOP)


def calls(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@asynccontextmanager
async def resources(
    store: Store, replies: Sequence[str], agents: Agents, **options: Any
) -> AsyncIterator[tuple[Resources, Engines]]:
    left = list(replies)

    async def behave(request: httpx.Request) -> httpx.Response:
        return said(left.pop(0))

    async def services() -> Sequence[Service]:
        return [Up("http://a:1")]

    engines = Engines({"a": behave})
    config = SamplerConfig(run=store.run, db_connection_string="x", model_name_or_path=Path("."), **options)
    async with EngineClient(transport=httpx.MockTransport(engines)) as client:
        pool = EnginePool(client, services, PoolLimits())
        parser = get_parser(config.prompt.tool_call_parser)
        yield Resources(store, config, "w", TEMPLATE, pool, [BOX], ToolCatalog(), parser, agents), engines
        await pool.close()


async def episode(
    store: Store,
    replies: Sequence[str],
    payload: dict[str, Any] | None = None,
    agents: Agents = NO_AGENTS,
    split: str = "train",
    **options: Any,
) -> tuple[float | None, list[DispatchedSamplingTask], Engines]:
    await import_tasks(store, 1, num_generations=1, split=split)
    if payload:
        await store.database["tasks"].update_many({}, {"$set": {f"payload.{k}": v for k, v in payload.items()}})
    got = await claim(store, split=split)
    async with resources(store, replies, agents, **options) as (shared, engines):
        score = await play(MCPSampler(shared, got))
    return score, (await store.records.dispatches_of([got.record_id]))[got.record_id], engines


async def test_calls_and_their_answers_become_part_of_the_record(store: Store) -> None:
    replies = [
        calls("add", a=2, b=3) + "\n" + calls("bump"),
        calls("refuse", reason="bad move"),
        calls("big", n_chars=4000),
        "<answer>5</answer>",
    ]
    score, dispatches, engines = await episode(store, replies, max_tool_result_tokens=300)
    assert score is not None
    first, second, third, last = dispatches
    record = await store.records.get(first.record)
    assert record is not None
    found = {"scorer": "exact_match", "extracted": "5", "expected": ["4"], "reason": "differs from '4'"}
    assert record.reward_details == found, "the default scorer is named too"
    assert [(call.name, call.is_error, call.retries) for call in first.tool_calls] == [
        ("add", False, 0),
        ("bump", False, 0),
    ]
    assert first.tool_calls[0].result == "5"
    assert json.loads(first.tool_calls[1].result)["n"] == 1
    assert [call.raw for call in (*first.tool_calls, *second.tool_calls)] == [None] * 3, "the result says all of it"
    assert second.tool_calls[0].is_error
    assert "bad move" in second.tool_calls[0].result
    (long,) = third.tool_calls
    assert len(TEMPLATE.encode(long.result)) <= 300
    assert long.cut_chars > 0
    assert json.loads(long.raw or "")["content"][0]["text"].endswith("END")
    assert len(json.loads(long.raw or "")["content"][0]["text"]) == 4000
    assert third.response is not None
    call_id = third.response.message["tool_calls"][0]["id"]
    assert [call.id for call in (*first.tool_calls, *second.tool_calls, long)] == [
        "c00000000",
        "c00000001",
        "c00000064",
        "c00000128",
    ]
    assert last.messages == [{"role": "tool", "name": "big", "tool_call_id": call_id, "content": long.result}]
    prompt = TEMPLATE.decode(engines.bodies()[0]["input_ids"])
    assert '"name": "add"' in prompt
    assert INSTRUCTIONS["answer"] in prompt, "the engine reads how the answer is to be written"


async def test_the_tools_are_stored_once_before_the_first_request_that_names_them(store: Store, mongod: Mongod) -> None:
    await import_tasks(store, 1, num_generations=2)
    recorder = Recorder()
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[recorder])
    recorded = Store(client, store.run)
    replies = [calls("add", a=2, b=3), "<answer>5</answer>"] * 2
    async with resources(recorded, replies, NO_AGENTS) as (shared, engines):
        for _ in range(2):
            assert await play(MCPSampler(shared, await claim(store))) is not None
    written = [str(command["update"]) for command in recorder.take() if "update" in command]
    await client.close()
    assert written.count("tool_schemas") == 1
    assert written.index("tool_schemas") < written.index("dispatched_sampling_tasks")
    assert written.count("dispatched_sampling_tasks") == 2 * (2 + 1), "one command a turn, and one at the end"
    (schemas,) = await store.database["tool_schemas"].find().to_list()
    assert {d["tools_hash"] async for d in store.database["dispatched_sampling_tasks"].find()} == {schemas["_id"]}
    prompt = TEMPLATE.decode(engines.bodies()[0]["input_ids"])
    assert all(json.dumps(json.loads(line)) in prompt for line in schemas["tools"]), "as the model was told of them"
    assert "add" in {json.loads(line)["function"]["name"] for line in schemas["tools"]}
    report = await audit(store, running=True)
    assert (report.ok, report.results[Check.TOOLS].examined) == (True, 1)


async def test_a_tasks_turns_and_temperature_override_the_samplers(store: Store) -> None:
    payload = {"max_turns": 1, "temperature": 0.25}
    replies = [calls("add", a=2, b=3), "<answer>5</answer>"]
    score, dispatches, engines = await episode(store, replies, payload, max_turns=4, temperature=1.0)
    assert (score, len(dispatches), len(engines.bodies())) == (0.0, 1, 1)
    assert engines.bodies()[0]["sampling_params"]["temperature"] == 0.25
    assert dispatches[0].sampling_params["temperature"] == 0.25


@pytest.mark.parametrize(("split", "applies"), [("eval", True), ("train", False)])
async def test_evaluations_own_sampling_applies_only_to_evaluation(store: Store, split: str, applies: bool) -> None:
    asked = {"top_p": 0.9, "top_k": 20, "presence_penalty": 1.5}
    options = {"eval_sampling": asked, "eval_temperature": 0.6}
    _, (dispatch,), engines = await episode(store, ["<answer>5</answer>"], split=split, **options)
    sent = engines.bodies()[0]["sampling_params"]
    assert {name: sent.get(name) for name in asked} == (asked if applies else dict.fromkeys(asked) | {"top_p": 1.0})
    assert sent["temperature"] == (0.6 if applies else 1.0)
    assert {name: dispatch.sampling_params.get(name) for name in asked} == {name: sent.get(name) for name in asked}


async def test_denied_tools_are_neither_in_the_prompt_nor_callable(store: Store) -> None:
    payload = {"tools": ["add", "echo", "big"], "exclude_tools": ["echo"]}
    replies = [calls("echo", text="x"), "<answer>5</answer>"]
    _, dispatches, engines = await episode(store, replies, payload, exclude_tools=["b*"])
    prompt = TEMPLATE.decode(engines.bodies()[0]["input_ids"])
    assert '"name": "add"' in prompt
    assert '"name": "echo"' not in prompt
    assert '"name": "big"' not in prompt
    (call,) = dispatches[0].tool_calls
    assert call.is_error
    assert call.result == "unknown tool 'echo'; available: add"


async def test_a_tool_server_that_hangs_gives_no_score_and_the_slot_reopens(store: Store) -> None:
    replies = [calls("slow", seconds=60)]
    score, (dispatch,), _ = await episode(store, replies, tool_timeout_s=0.5)
    assert score is None
    assert dispatch.status is DispatchStatus.TOOL_FAILED
    record = (await store.records.get_many([dispatch.record]))[dispatch.record]
    assert record.status is RecordStatus.FAILED
    assert record.termination == Termination.TOOL_FAILURE.value
    assert record.score is None
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    assert (task.slots[0].status.value, task.slots[0].failures) == ("open", 1)


@pytest.mark.parametrize(
    ("arguments", "purpose"),
    [({}, "How does it end?"), ({"purpose": "Which digit comes first?"}, "Which digit comes first?")],
    ids=["default purpose", "purpose of the call"],
)
async def test_a_long_result_is_summarized_for_its_purpose_and_the_call_names_the_model(
    store: Store, arguments: dict[str, str], purpose: str
) -> None:
    replies = [calls("big", n_chars=4000, **arguments) + "\n" + calls("add", a=2, b=3), "<answer>5</answer>"]
    async with endpoint("status 503") as bad, endpoint("says In END.") as good:
        agent = browser(
            bad, good, browse_tools=["b*"], default_purpose={"b*": "How does it end?"}, min_prompt_length=50
        )
        score, dispatches, _ = await episode(store, replies, agents=Agents(browse=agent))
        await agent.close()
    assert score is not None
    big, add = dispatches[0].tool_calls
    assert big.result == f"[summary of 4000 characters; purpose: {purpose}]\nIn END."
    assert big.summarized_by is not None
    assert (big.summarized_by.model, len(big.summarized_by.failures), big.cut_chars) == ("m2", 2, 4000)
    assert len(json.loads(big.raw or "")["content"][0]["text"]) == 4000
    assert f"Purpose: {purpose}" in good.prompts()[0]
    assert (add.result, add.summarized_by) == ("5", None)
    assert dispatches[1].messages[0]["content"] == big.result


async def test_a_failed_summary_gives_no_score_and_the_call_lists_the_failures(store: Store) -> None:
    async with endpoint("garbage") as bad:
        agent = browser(bad, browse_tools=["big"], min_prompt_length=50)
        agents = Agents(browse=agent)
        score, (dispatch,), _ = await episode(store, [calls("big", n_chars=4000)], agents=agents)
        await agent.close()
    assert score is None
    assert dispatch.status is DispatchStatus.TOOL_FAILED
    (call,) = dispatch.tool_calls
    assert call.summarized_by is not None
    assert (call.summarized_by.model, len(call.summarized_by.failures)) == (None, 2)
    record = (await store.records.get_many([dispatch.record]))[dispatch.record]
    assert (record.status, record.termination, record.score) == (RecordStatus.FAILED, Termination.AGENT_FAILURE, None)
    assert "no model of browse_agent gave an answer: m1 at" in (record.error or "")


class Own(MCPSampler):
    async def evaluate_record(self) -> Score:
        return Score(0.5)


async def test_an_unknown_scorer_is_detected_before_sampling(store: Store) -> None:
    payload = TaskPayload(query="2+2?", answer="4", scorer="unknown")
    await store.tasks.insert_new([make_task(0, num_generations=2).model_copy(update={"payload": payload})])
    async with episodes.resources(store, episodes.says("<answer>4</answer>")) as shared:
        sampler = MCPSampler(shared, await claim(store))
        assert await play(sampler) is None
        assert await play(Own(shared, await claim(store))) == 0.5, "it scores itself"
    record, _, dispatches = await episodes.ended(store, sampler)
    assert (record.termination, dispatches) == (Termination.MISCONFIGURED, [])


@pytest.mark.parametrize(
    ("payload", "message", "slot_status"),
    [
        ({"scorer": "unknown"}, "scorer 'unknown' is unknown; expected one of", SlotStatus.FAILED),
        ({"scorer": "agentcpm"}, "scorer 'agentcpm' needs a judge", SlotStatus.FAILED),
        ({"tools": ["serach"]}, "tool 'serach' is allowed, but not offered", SlotStatus.OPEN),
    ],
)
async def test_a_task_with_missing_needs_names_them_and_is_retried_only_if_they_may_appear(
    store: Store, payload: dict[str, Any], message: str, slot_status: SlotStatus
) -> None:
    """A tool server's list may grow; a sampler's scorers do not."""
    task = make_task(0, num_generations=1).model_copy(update={"payload": TaskPayload(query="2+2?", **payload)})
    await store.tasks.insert_new([task])
    async with episodes.resources(store, episodes.says("<answer>4</answer>"), max_failures=8) as shared:
        sampler = MCPSampler(shared, await claim(store))
        assert await play(sampler) is None
        record, slot, _ = await episodes.ended(store, sampler)
    assert (record.status, record.score, record.termination) == (RecordStatus.FAILED, None, Termination.MISCONFIGURED)
    assert (slot.status, slot.score, slot.failures) == (slot_status, None, 1)
    assert message in (slot.error or "")
    assert slot.error == record.error
