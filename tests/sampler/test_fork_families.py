"""Forks over the chat templates of nine model families: the stored prompt is found again, and goes on as its origin would."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.parsers import get_parser
from sampler.core.tools import ToolCatalog
from sampler.settings import SamplerConfig
from shared.documents import Claim
from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.boxes import Box
from tests.sampler.engines import STOP, Engines, Up, answer
from tests.sampler.families import FAMILIES, Call, Family, Reply
from tests.sampler.test_fork import claimed, forked
from tests.sampler.test_mcp_sampler import NO_AGENTS
from tests.shared.builders import claim, import_tasks

MODES = [(family, mode) for family in FAMILIES.values() for mode in family.modes]
QUESTION = [{"role": "user", "content": "What is 2+2?"}]


def name_of(value: Any) -> str:
    return value.name if isinstance(value, Family) else str(value)


def replies_of(family: Family, mode: str) -> list[list[int]]:
    """The ids of three calls and an answer, each as the family's models write it."""
    template, found = family.template(mode), []
    said: list[dict[str, Any]] = list(QUESTION)
    for turn in range(4):
        call = Call(family.call_id(turn, "add"), "add", {"a": turn, "b": 1})
        thinks = mode in family.thinks and (turn == 0 or family.after_result)
        reply = Reply("" if turn < 3 else "<answer>4</answer>", "Let me see." if thinks else "", [call] * (turn < 3))
        written = family.written(mode, said, [], reply)
        found.append(template.encode(written.text) + template.encode(written.end))
        said += [family.message(mode, reply)]
        if turn < 3:
            said.append({"role": "tool", "name": "add", "tool_call_id": call.id, "content": str(turn + 1)})
    return found


@asynccontextmanager
async def resources(
    store: Store, box: Box, family: Family, mode: str, replies: Sequence[list[int]], rewrites: Literal["branch", "keep"]
) -> AsyncIterator[tuple[Resources, Engines]]:
    left = list(replies)

    async def behave(request: httpx.Request) -> httpx.Response:
        ids = left.pop(0)
        return answer(ids, STOP | {"matched": ids[-1]})

    async def services() -> Sequence[Service]:
        return [Up("http://a:1")]

    engines = Engines({"a": behave})
    config = SamplerConfig(
        run=store.run,
        db_connection_string="x",
        model_name_or_path=Path("."),
        tool_call_parser=family.parser,
        template_rewrites=rewrites,
    )
    async with EngineClient(transport=httpx.MockTransport(engines)) as client:
        pool = EnginePool(client, services, PoolLimits())
        parser, template = get_parser(family.parser), family.template(mode)
        yield Resources(store, config, "w", template, pool, [box.server], ToolCatalog(), parser, NO_AGENTS), engines
        await pool.close()


async def prompts(
    store: Store,
    box: Box,
    held: Claim,
    family: Family,
    mode: str,
    replies: Sequence[list[int]],
    rewrites: Literal["branch", "keep"],
) -> list[list[int]]:
    async with resources(store, box, family, mode, replies, rewrites) as (shared, engines):
        await play(MCPSampler(shared, held))
    record = await store.records.get(held.record_id)
    assert record is not None
    assert record.status is RecordStatus.SCORED, record.error
    return [body["input_ids"] for body in engines.bodies()]


@pytest.mark.parametrize("rewrites", ["branch", "keep"])
@pytest.mark.parametrize(("family", "mode"), MODES, ids=name_of)
async def test_a_fork_at_any_turn_that_says_the_same_is_asked_the_same(
    store: Store, shared_box: Box, family: Family, mode: str, rewrites: Literal["branch", "keep"]
) -> None:
    replies = replies_of(family, mode)
    await import_tasks(store, 1, num_generations=1)
    await store.database["tasks"].update_many({}, {"$set": {"payload.tools": ["add"]}})
    held = await claim(store)
    asked = await prompts(store, shared_box, held, family, mode, replies, rewrites)
    assert len(asked) == 4, "three calls and an answer"
    for turn in range(4):
        task = await forked(store, f"{held.record_id}:{turn}", earlier_calls="stateless" if turn else "none")
        again = await prompts(store, shared_box, await claimed(store), family, mode, replies[turn:], rewrites)
        assert again == asked[turn:], task.id
