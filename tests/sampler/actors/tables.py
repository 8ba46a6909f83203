"""Episodes of several actors: the newest weights (version 3), those of version 40, and API models."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from sampler.actors.rounds_sampler import RoundsSampler
from sampler.core.api_models import Agents
from sampler.core.api_models.config import AgentConfig
from sampler.core.api_models.player import Player
from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.scorers import Score
from shared.documents import DBRecordData
from shared.store import Store
from tests.sampler.agents.agents import QUICK, models
from tests.sampler.agents.endpoints import Service
from tests.sampler.engines import Engines, Up
from tests.sampler.episodes import LIMITS, Behavior, resources, says
from tests.sampler.pools import fields_of
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks

NEW, OLD = Up("http://new", version=3), Up("http://old", version=40)
ACTORS: dict[str, Any] = {
    "Bob": {"policy": "main", "system": "You are Bob."},
    "Rival": {"policy": "main", "at": 40},
    "Old": {"policy": "main", "at": "frozen"},
}
CRITIC: dict[str, Any] = {"Critic": {"model": "judge-api", "system": "You criticize."}}


class Talk(RoundsSampler):
    """Even slots are right."""

    async def evaluate_record(self) -> Score:
        return Score(1.0 - self.claim.traj_id % 2)


@asynccontextmanager
async def table(
    store: Store,
    listed: Sequence[Up] = (NEW, OLD),
    players: Mapping[str, Sequence[Service]] | None = None,
    new: Behavior | None = None,
    **config: Any,
) -> AsyncIterator[Resources]:
    """What the episodes share. `listed`: the engines that are up. `players`: the endpoints of each API model. `new`: how the
    newest weights reply."""
    behaviors = {"new": new or says("four", "3"), "old": says("forty", "40")}
    async with (
        EngineClient(transport=httpx.MockTransport(Engines(behaviors))) as client,
        resources(store, says(""), **{"actors": ACTORS, **config}) as shared,
    ):

        async def newest() -> list[Up]:
            return [NEW]

        async def every() -> list[Up]:
            return list(listed)

        own, all_of_them = EnginePool(client, newest, LIMITS), EnginePool(client, every, LIMITS)
        seated = {
            name: Player(name, AgentConfig.model_validate({**QUICK, "models": models(services)}))
            for name, services in (players or {}).items()
        }
        agents = Agents(players=seated)
        yield Resources(**{**fields_of(shared), "pool": own, "every_version": {"main": all_of_them}, "agents": agents})
        for pool in (own, all_of_them):
            await pool.close()
        await agents.close()


async def played(
    store: Store, kind: type[AsyncSampler] = Talk, generations: int = 2, **given: Any
) -> list[DBRecordData]:
    """A whole group, played and settled; its training data, by id."""
    await import_tasks(store, 1, num_generations=generations)
    async with table(store, **given) as shared:
        for _ in range(generations):
            assert await play(kind(shared, await claim(store))) is not None
        await settle_next(store, "w", shared.config)
    return sorted(await store.data.find({}), key=lambda data: data.id)
