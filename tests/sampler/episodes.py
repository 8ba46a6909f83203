"""Whole episodes against the real store; the engine is scripted at the transport."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from sampler.core.engines.client.engine_client import EngineClient, EngineTimeouts
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.parsers import get_parser
from sampler.core.rendering.template import ChatTemplate
from sampler.core.tenant import open_tenants
from sampler.core.tools import ToolCatalog, parse_servers
from sampler.settings import SamplerConfig
from shared.documents import DispatchedSamplingTask, Record, Slot
from shared.store import Store
from tests.sampler.engines import STOP, Up, answer

MODEL = Path(__file__).parents[2] / "assets" / "example" / "model"
TEMPLATE = ChatTemplate.from_dir(MODEL)
LIMITS = PoolLimits(refresh_s=60, max_failures=3, wait_s=0.5, backoff_s=0.01, suspect_s=0.01, max_suspect_s=0.02)
Behavior = Callable[[httpx.Request], Awaitable[httpx.Response]]


def says(text: str, version: str = "3") -> Behavior:
    """An engine that always replies `text`."""
    return samples([*TEMPLATE.encode(text), TEMPLATE.token_id("<|im_end|>") or 0], version)


def samples(ids: Sequence[int], version: str = "3") -> Behavior:
    async def behavior(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            return httpx.Response(200)
        prompt = json.loads(request.content)["input_ids"]
        return answer(list(ids), {**STOP, "matched": ids[-1]}, version=version, prompt_tokens=len(prompt))

    return behavior


@asynccontextmanager
async def resources(store: Store, engine: Behavior | str, **config: Any) -> AsyncIterator[Resources]:
    """What the episodes of one process share, with one engine that behaves like `engine`, or listens there."""
    values = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL, "max_turns": 2} | config
    options = SamplerConfig.model_validate(values)
    timeouts = EngineTimeouts(generate_s=options.engines.engine_timeout_s)

    async def services() -> list[Up]:
        return [Up(engine if isinstance(engine, str) else "http://engine")]

    transport = None if isinstance(engine, str) else httpx.MockTransport(engine)
    async with EngineClient(timeouts, transport=transport) as client:
        pool = EnginePool(client, services, replace(LIMITS))
        shared = Resources(
            store=store,
            config=options,
            worker="w",
            template=TEMPLATE,
            pool=pool,
            tool_servers=parse_servers(options.tools.mcp_manager_url),
            tool_catalog=ToolCatalog(),
            parser=get_parser(options.prompt.tool_call_parser),
            opened=open_tenants(store, options),
        )
        try:
            yield shared
        finally:
            await shared.opened.close()
            await pool.close()


async def ended(store: Store, sampler: AsyncSampler) -> tuple[Record, Slot, list[DispatchedSamplingTask]]:
    """An episode's documents: its record, its slot, its requests."""
    claim = sampler.claim
    record, task = await store.records.get(claim.record_id), await store.tasks.get(claim.task.id)
    assert record is not None
    assert task is not None
    return record, task.slots[claim.traj_id], (await store.records.dispatches_of([record.id]))[record.id]
