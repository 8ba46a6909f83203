"""Pools of engines with constant replies, for episodes of several policies or sources."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode.resources import Resources
from tests.sampler.engines import Engines, Up
from tests.sampler.episodes import LIMITS, says


@asynccontextmanager
async def pools(**said: tuple[str, str]) -> AsyncIterator[dict[str, EnginePool]]:
    """Pools of one engine each, by name: (its constant reply, its weight version)."""
    behaviors = {name: says(text, version) for name, (text, version) in said.items()}
    async with EngineClient(transport=httpx.MockTransport(Engines(behaviors))) as client:

        def pool(name: str) -> EnginePool:
            async def services() -> list[Up]:
                return [Up(f"http://{name}", version=int(said[name][1]))]

            return EnginePool(client, services, LIMITS)

        made = {name: pool(name) for name in said}
        yield made
        for one in made.values():
            await one.close()


def fields_of(shared: Resources) -> dict[str, Any]:
    return {name: getattr(shared, name) for name in Resources.__dataclass_fields__}
