"""Long episodes that make a context policy act: a real tool server, a real database; the policy's replies are scripted."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sampler.core.api_models import Agents
from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.history.history import SUMMARY_REQUEST
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.parsers import get_parser
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from sampler.core.tools import ToolCatalog, ToolServer
from sampler.settings import SamplerConfig
from shared.documents import DBRecordData, DispatchedSamplingTask, Record, TaskPayload
from shared.documents.packed import unpack_ints
from shared.store import Store
from shared.tokens.flatten import tree_of
from shared.tokens.record_tree import RecordTree
from tests.sampler.agents.agents import browser
from tests.sampler.agents.endpoints import endpoint
from tests.sampler.chats import chat
from tests.sampler.engines import LENGTH, STOP, Up, answer
from tests.sampler.settling import settle_next
from tests.sampler.test_mcp_sampler import calls
from tests.shared.builders import claim, make_task

QUERY = "What is the code?"
AGENT_SUMMARY = "Pages were read; none of them holds more than fillers."
SUMMARY = "I looked at three pages. The code is 1234. Next: answer."
PAGES = [f"Page {n}.\n" + calls("big", n_chars=size) for n, size in enumerate((500, 700, 900, 1100, 600))]
ANSWER = "<answer>1234</answer>"


@dataclass(frozen=True)
class Played:
    """One episode, settled. `prompts`: what the engine was sent, in order; `agent_prompts`: what the browse agent read."""

    record: Record
    dispatches: list[DispatchedSamplingTask]
    data: DBRecordData
    prompts: list[list[int]]
    outputs: list[list[int]]
    agent_prompts: list[str]

    @property
    def tree(self) -> RecordTree:
        """What is trained; made of the dispatches, and its digest is that of the settlement."""
        return tree_of(self.data, self.dispatches)


async def played(
    store: Store,
    box: ToolServer,
    replies: Sequence[str],
    *,
    number: int = 0,
    template: ChatTemplate | None = None,
    parser: str = "hermes",
    summary: str = SUMMARY,
    **options: Any,
) -> Played:
    """`box` serves the tools. `replies` in order, a request for a summary gets `summary`; one that ends with … is cut there."""
    template = template or chat("qwen")
    end = turn_format(template).end_ids[0]
    left, prompts, outputs = list(replies), list[list[int]](), list[list[int]]()

    async def engine(request: httpx.Request) -> httpx.Response:
        prompt = json.loads(request.content)["input_ids"]
        prompts.append(prompt)
        text = summary if SUMMARY_REQUEST[-80:] in template.decode(prompt[-200:]) else left.pop(0)
        cut = text.endswith("…")
        outputs.append(_spelled(template, text.removesuffix("…")) + ([] if cut else [end]))
        return answer(outputs[-1], LENGTH if cut else STOP | {"matched": end}, prompt_tokens=len(prompt))

    async def services() -> Sequence[Service]:
        return [Up("http://a:1")]

    values = {"max_turns": 12, "max_tokens": 4000, "max_new_tokens": 400} | options
    config = SamplerConfig(run=store.run, db_connection_string="x", model_name_or_path=Path("."), **values)
    payload = TaskPayload(query=QUERY, answer="1234", tools=["add", "big"])
    task = make_task(number, num_generations=1).model_copy(update={"payload": payload})
    await store.tasks.insert_new([task])
    got = await claim(store)
    async with (
        EngineClient(transport=httpx.MockTransport(engine)) as client,
        endpoint(f"says {AGENT_SUMMARY}") as agent,
    ):
        pool = EnginePool(client, services, PoolLimits())
        agents = Agents(browse=browser(agent))
        shared = Resources(store, config, "w", template, pool, [box], ToolCatalog(), get_parser(parser), agents=agents)
        assert await play(MCPSampler(shared, got)) is not None, "an infrastructure failure"
        await agents.close()
        await pool.close()
    await settle_next(store, "w", config)
    record = await store.records.get(got.record_id)
    assert record is not None
    (data,) = await store.data.find({"_id": record.id})
    dispatches = (await store.records.dispatches_of([record.id]))[record.id]
    return Played(record, dispatches, data, prompts, outputs, agent.prompts())


def _spelled(template: ChatTemplate, text: str) -> list[int]:
    """Ids that the tokenizer would not produce: pieces of three characters. Re-encoding the text gives other ids."""
    texts, tokens = template.added_re.split(text), [*template.added_re.findall(text), ""]
    ids: list[int] = []
    for piece, token in zip(texts, tokens, strict=True):
        ids += [i for at in range(0, len(piece), 3) for i in template.encode(piece[at : at + 3])]
        ids += template.encode(token)
    return ids


def check_token_exactness(episode: Played) -> None:
    """The tokens sent to and sampled by the engine equal those stored and trained: every reply once, after its own prompt."""
    tree = episode.tree
    assert [unpack_ints(d.response.output_ids).tolist() for d in episode.dispatches if d.response] == episode.outputs
    assert len(tree.dispatches) == len(episode.outputs)
    for index, (prompt, output) in enumerate(zip(episode.prompts, episode.outputs, strict=True)):
        places = [i for i, d in enumerate(tree.dispatches_N.tolist()) if d == index]
        assert tree.token_ids_N[places].tolist() == output, f"reply {index} once"
        path = tree.path(places[-1])
        assert tree.token_ids_N[path].tolist() == [*prompt, *output], f"reply {index} behind what the engine read"
    assert episode.data.num_trained_tokens == sum(map(len, episode.outputs))
