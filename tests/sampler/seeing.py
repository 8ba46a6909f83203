"""Episodes of vision models in worlds that show images."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.environments.choosing import Environments
from sampler.settings import SamplerConfig
from shared.store import Store
from tests.sampler.episodes import resources
from tests.sampler.seeing_engine import SeeingEngine, reply_ids, with_template
from tests.sampler.vision_chats import vision_template

MAX_REPLIES = 60


@asynccontextmanager
async def seen_worlds(
    store: Store, template: ChatTemplate, says: Callable[[int], str], **config: Any
) -> AsyncIterator[tuple[Resources, SeeingEngine]]:
    """What episodes in environments share; the engine replies `says(number of the request)`."""
    engine = SeeingEngine(template, *(reply_ids(template, says(number)) for number in range(MAX_REPLIES)))
    async with resources(store, engine, **{"max_turns": 8, **config}) as shared:
        environments = Environments(store.environments.live, shared.config.part(SamplerConfig).environments)
        yield with_template(shared, template, opened=shared.opened.replaced(environments)), engine
        await environments.close()


def seeing_template(folder: Path, family: str = "qwen2_5_vl") -> ChatTemplate:
    return vision_template(folder, family, published=False)
