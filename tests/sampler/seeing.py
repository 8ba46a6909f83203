"""Episodes of vision models at a scripted engine, which expands images as engines do and says which tokens it has read."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.environments.choosing import Environments
from sampler.settings import SamplerConfig
from shared.images.header import header_of
from shared.store import Store
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import resources
from tests.sampler.pools import fields_of
from tests.sampler.vision_chats import vision_template


class SeeingEngine:
    """`says` gives the reply to a turn's number. `images`: by turn, the files of its request."""

    def __init__(self, template: ChatTemplate, says: Callable[[int], str]) -> None:
        self.template, self.says = template, says
        self.images: dict[int, list[bytes]] = {}
        self.prompts: dict[int, list[int]] = {}

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            return httpx.Response(200)
        body: dict[str, Any] = json.loads(request.content)
        number = int(body["rid"].rpartition("-")[0].rpartition(":")[2])
        self.images[number] = [base64.b64decode(data) for data in body.get("image_data", ())]
        self.prompts[number] = self._expanded(body["input_ids"], self.images[number])
        end = self.template.token_id("<|im_end|>")
        ids = [*self.template.encode(self.says(number)), end]
        response = answer(ids, {**STOP, "matched": end}, prompt_tokens=len(self.prompts[number]))
        return httpx.Response(200, json={**json.loads(response.content), "prompt_token_ids": self.prompts[number]})

    def _expanded(self, ids: list[int], files: list[bytes]) -> list[int]:
        assert self.template.images is not None
        expanded: list[int] = []
        waiting = iter(files)
        for token in ids:
            if token != self.template.images.placeholder:
                expanded.append(token)
                continue
            header = header_of(next(waiting), "image")
            expanded += self.template.encode(self.template.images.family.tokens(header.height, header.width))
        return expanded


@asynccontextmanager
async def seen_worlds(
    store: Store, template: ChatTemplate, says: Callable[[int], str], **config: Any
) -> AsyncIterator[tuple[Resources, SeeingEngine]]:
    """What episodes in environments share, of a model that reads images."""
    engine = SeeingEngine(template, says)
    async with resources(store, engine, **{"max_turns": 8, **config}) as shared:
        environments = Environments(store.environments.live, shared.config.part(SamplerConfig).environments)
        opened = shared.opened.replaced(environments)
        yield Resources(**{**fields_of(shared), "template": template, "opened": opened}), engine
        await environments.close()


def seeing_template(folder: Path, family: str = "qwen2_5_vl") -> ChatTemplate:
    return vision_template(folder, family, published=False)
