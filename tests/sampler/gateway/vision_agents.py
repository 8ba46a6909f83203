"""Agents that send images through the gateway: a tiny vision model's template, an engine that expands images, and pictures."""

import base64
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from sampler.gateway.agent_sampler import AgentSampler, AgentTask
from shared.store import Store
from tests.sampler.episodes import ended, resources
from tests.sampler.gateway import agents
from tests.sampler.gateway.agents import Ended
from tests.sampler.seeing_engine import SeeingEngine, with_template
from tests.sampler.vision_chats import vision_template
from tests.shared.builders import claim, import_tasks

FAMILY = "qwen2_5_vl"


def picture(seed: int, height: int = 40, width: int = 50) -> bytes:
    """A PNG file of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{text64(data)}"


class RecordingEngine(SeeingEngine):
    """Replies with the texts in order, as ids that no tokenizer gives. `exchanges`: prompts as it read them, and replies;
    `files`: the images of each prompt."""

    def __init__(self, template: ChatTemplate, *texts: str) -> None:
        self._odd = [_odd_ids(template, text) for text in texts]
        super().__init__(template, *self._odd)
        self.exchanges: list[tuple[list[int], list[int]]] = []
        self.files: list[list[bytes]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        answered = await super().__call__(request)
        if request.url.path != "/abort_request":
            self.exchanges.append((answered.json()["prompt_token_ids"], self._odd[len(self.exchanges)]))
            self.files.append([base64.b64decode(text) for text in self.bodies[-1].get("image_data", ())])
        return answered


def _odd_ids(template: ChatTemplate, text: str) -> list[int]:
    pieces = re.findall(r"</?(?:tool_call|think|answer)>|.{1,2}", text, re.DOTALL)
    return [*(token for piece in pieces for token in template.encode(piece)), turn_format(template).end_ids[0]]


def seeing_template(folder: Path) -> ChatTemplate:
    return vision_template(folder, FAMILY, published=False)


async def seen_by(
    store: Store,
    engine: Any,
    template: ChatTemplate,
    agent: Callable[[AgentTask], Awaitable[Any]] | None,
    *,
    new_tasks: bool = True,
    **options: Any,
) -> Ended:
    """The documents of an episode that `agent` (None: the options' own) played with a model of this template. Raises what the
    agent asserts."""
    if new_tasks:
        await import_tasks(store, 1, num_generations=1)
    failed: list[AssertionError] = []
    own = {} if agent is None else {"agent": f"{agents.__name__}:the_agent"}
    async with seeing(store, engine, template, **(own | options)) as shared:
        if agent is not None:
            agents.agent_function = agents._watched(agent, failed)
        sampler = AgentSampler(shared, await claim(store))
        await play(sampler)
        if failed:
            raise failed[0]
        return await ended(store, sampler)


@asynccontextmanager
async def seeing(store: Store, engine: Any, template: ChatTemplate, **options: Any) -> AsyncIterator[Resources]:
    own = {"sampler": "sampler.gateway.agent_sampler:AgentSampler", "max_turns": 20}
    async with resources(store, engine, **(own | options)) as shared:
        yield with_template(shared, template)
