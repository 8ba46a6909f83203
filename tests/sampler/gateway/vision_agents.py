"""Agents that send images through the gateway: a tiny vision model's template, an engine that expands images, and pictures."""

import base64
import io
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields
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
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import ended, resources
from tests.sampler.gateway import agents
from tests.sampler.gateway.agents import Ended
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


class SeeingEngine:
    """Replies with the texts in order, as ids that no tokenizer gives; expands images as a real engine, by the family's rule.
    `exchanges`: prompts as it read them, and replies; `files`: the images of each prompt."""

    def __init__(self, template: ChatTemplate, *replies: str) -> None:
        self.exchanges: list[tuple[list[int], list[int]]] = []
        self.files: list[list[bytes]] = []
        self._template, self._replies = template, list(replies)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            return httpx.Response(200)
        body = json.loads(request.content)
        files = [base64.b64decode(text) for text in body.get("image_data", ())]
        prompt, text = self._expanded(body["input_ids"], files), self._replies[len(self.exchanges)]
        ids = [
            token
            for piece in re.findall(r"</?(?:tool_call|think|answer)>|.{1,2}", text, re.DOTALL)
            for token in self._template.encode(piece)
        ]
        ids.append(turn_format(self._template).end_ids[0])
        self.exchanges.append((prompt, ids))
        self.files.append(files)
        reply = answer(ids, {**STOP, "matched": ids[-1]}, prompt_tokens=len(prompt))
        return httpx.Response(200, json={**reply.json(), "prompt_token_ids": prompt})

    def _expanded(self, ids: Sequence[int], files: Sequence[bytes]) -> list[int]:
        images = self._template.images
        if images is None:
            return list(ids)
        sizes = [Image.open(io.BytesIO(data)).size for data in files]
        counts = iter([images.family.features(height, width) for width, height in sizes])
        return [one for token in ids for one in [token] * (next(counts) if token == images.placeholder else 1)]


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
        values = {one.name: getattr(shared, one.name) for one in fields(shared)}
        yield Resources(**{**values, "template": template})
