"""Whole episodes on a scripted engine: branches are stored, flattened and audited; malformed calls are reported to the model."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.parsers import get_parser
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from sampler.core.tools import ToolCatalog
from sampler.scorers import Score
from sampler.settings import SamplerConfig
from shared.documents.packed import unpack_ints
from shared.documents.states import BranchCause, DispatchStatus, Termination
from shared.store import Store
from shared.tokens.flatten import tree_of
from tandem.audit.run import audit
from tests.sampler.engines import Up, answer
from tests.sampler.families import FAMILIES, Call, Reply
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks

REPLIES = (
    "<think>\nhm\n</think>\n\nFour.",
    "<think>\nagain\n</think>\n\nStill four.",
    "<think>\nend\n</think>\n\nYes.",
)


class Asker(AsyncSampler):
    """Three questions; the last one with a history of the sampler's own making."""

    async def run(self) -> Termination:
        first = [{"role": "user", "content": self.task.payload.query}]
        self.add_metric("first_prompt", self.prompt_tokens(first))
        turn = await self.create_chat_completions(first)
        await self.create_chat_completions([{"role": "user", "content": "Sure?"}])
        assert turn is not None
        history = [*first, turn.message, {"role": "user", "content": "Say yes."}]
        await self.create_chat_completions(history, restart=True)
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(float(self.claim.traj_id))


async def run_episodes(
    store: Store, sampler: type[AsyncSampler], template: ChatTemplate, texts: tuple[str, ...], parser: str
) -> Resources:
    end = turn_format(template).end_ids[0]
    asked = Counter[str]()

    async def engine(request: httpx.Request) -> httpx.Response:
        body: dict[str, Any] = json.loads(request.content)
        episode = body["rid"].rpartition(":")[0].partition("#")[0]
        text = texts[min(asked[episode], len(texts) - 1)]
        asked[episode] += 1
        ids = [*template.encode(text), end]
        return answer(ids, {"type": "stop", "matched": end}, "0", len(body["input_ids"]))

    async def services() -> list[Up]:
        return [Up("http://a:1", version=0)]

    config = SamplerConfig(run="r", db_connection_string="x", model_name_or_path=Path("."), max_turns=3)
    await import_tasks(store, 1)
    async with EngineClient(transport=httpx.MockTransport(engine)) as client:
        pool = EnginePool(client, services, PoolLimits())
        resources = Resources(store, config, "w", template, pool, [], ToolCatalog(), get_parser(parser))
        for _ in range(2):
            got = await claim(store)
            assert await play(sampler(resources, got)) is not None
        await pool.close()
    await settle_next(store, "w", config)
    return resources


async def test_branches_are_stored_counted_flattened_and_audited(store: Store) -> None:
    template = FAMILIES["qwen3"].template("on")
    resources = await run_episodes(store, Asker, template, REPLIES, "qwen")
    assert resources.branch_causes == {"clean": 2, "template_rewrite": 2, "context_policy": 2}
    data = (await store.data.find({}))[0]
    first, second, third = (await store.records.dispatches_of([data.id]))[data.id]
    assert [d.branch_cause for d in (first, second, third)] == [
        BranchCause.CLEAN,
        BranchCause.TEMPLATE_REWRITE,
        BranchCause.CONTEXT_POLICY,
    ]
    assert second.parent == first.id
    assert first.usage["prompt"] == data.metrics["first_prompt"], "known before anything was asked"
    assert template.decode(unpack_ints(second.prompt_ids).tolist()).startswith(
        "Four.<|im_end|>\n<|im_start|>user\nSure?"
    )
    assert template.decode(unpack_ints(third.prompt_ids).tolist()).startswith("ay yes.")  # "S" is shared with "Sure?"
    tree = tree_of(data, [first, second, third])
    assert len(tree.leaves()) == 3
    assert int((tree.dispatches_N >= 0).sum()) == sum(len(template.encode(text)) + 1 for text in REPLIES)
    report = await audit(store, running=True)
    assert report.ok, report


@pytest.mark.parametrize("name", ["mistral_nemo", "minicpm3", "deepseek_v31", "kimi_k2", "glm45", "llama31"])
async def test_parsers_see_a_familys_special_tokens_around_calls(store: Store, name: str) -> None:
    family = FAMILIES[name]
    written = Reply(calls=[Call(family.call_id(0, "lookup"), "lookup", {"x": "A"})])
    shown = family.written("off", [{"role": "user", "content": "What is A?"}], [], written)
    texts = (shown.text, "It is 4.")
    await run_episodes(store, MCPSampler, family.template("off"), texts, family.parser)
    record = (await store.database["records"].find().to_list())[0]
    first, second = (await store.records.dispatches_of([record["_id"]]))[record["_id"]]
    assert [(c.name, c.arguments, c.is_error) for c in first.tool_calls] == [("lookup", {"x": "A"}, True)]
    assert first.response is not None
    if not family.sentencepiece:  # which shows a blank behind a special token
        assert first.response.text == texts[0]
    assert second.messages[0]["tool_call_id"] == first.response.message["tool_calls"][0]["id"]
    assert record["answer"] is None


async def test_a_malformed_call_is_reported_to_the_model_and_recorded(store: Store) -> None:
    template = FAMILIES["qwen25"].template("off")
    texts = ('I look.\n<tool_call>\n{"name": "lookup", "arguments": {"x": }}\n</tool_call>', "It is 4.")
    await run_episodes(store, MCPSampler, template, texts, "qwen25")
    records = await store.database["records"].find().to_list()
    assert {r["termination"] for r in records} == {"answered"}
    broken, answered = (await store.records.dispatches_of([records[0]["_id"]]))[records[0]["_id"]]
    assert (broken.status, answered.status) == (DispatchStatus.FORMAT_ERROR, DispatchStatus.COMPLETED)
    assert broken.response is not None
    assert broken.response.text == texts[0]
    told = answered.messages[0]
    assert (told["role"], told["name"]) == ("tool", "error")
    assert "tool call 1 is not valid JSON: Expecting value at character 39" in told["content"]
    assert (broken.error, answered.error) == (told["content"], None), "the reason stands where the error was made"
    assert told["content"] in template.decode(unpack_ints(answered.prompt_ids).tolist())
