"""Episodes of `EnvironmentSampler` against real services, with a real store."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.environments.choosing import Environments
from sampler.environments.sampler import EnvironmentSampler
from sampler.settings import SamplerConfig
from shared.documents import TaskPayload
from shared.documents.run import EnvironmentService
from shared.store import Store
from tests.sampler.episodes import resources
from tests.sampler.pools import fields_of
from tests.sampler.threads import HeldEngine
from tests.shared.builders import claim, make_task


def task_of(store: Store, seq: int, kind: str, index: int = 0, num_generations: int = 1, **payload: Any) -> Any:
    metadata = {"environment": kind, "index": index, "custom_task": payload.pop("custom_task", {})}
    asked = TaskPayload(query=f"{kind} {index}", metadata=metadata, **payload)
    return make_task(seq, num_generations=num_generations).model_copy(update={"payload": asked})


async def registered(store: Store, url: str, *kinds: str, capacity: int = 100, running: int = 0) -> None:
    """As if the service had told its load an hour long."""
    await store.environments.heartbeat(
        EnvironmentService(id=url, url=url, kinds=list(kinds), capacity=capacity, running=running, heartbeat_s=3600)
    )


@asynccontextmanager
async def worlds(
    store: Store, says: Callable[[int], str], **config: Any
) -> AsyncIterator[tuple[Resources, HeldEngine]]:
    """What episodes share; the engine replies `says(turn)`."""
    engine = HeldEngine(says)
    async with resources(store, engine, **{"max_turns": 8, **config}) as shared:
        environments = Environments(store.environments.live, shared.config.part(SamplerConfig).environments)
        yield Resources(**{**fields_of(shared), "opened": shared.opened.replaced(environments)}), engine
        await environments.close()


async def one_episode(store: Store, shared: Resources) -> tuple[EnvironmentSampler, float | None]:
    sampler = EnvironmentSampler(shared, await claim(store))
    return sampler, await play(sampler)
