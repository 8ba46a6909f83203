"""A scripted engine that reads images as real ones do: one token each, replaced by the family's own number."""

import base64
import io
import json
from dataclasses import fields
from typing import Any

import httpx
from PIL import Image

from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from tests.sampler.engines import STOP, answer


class SeeingEngine:
    """Replies with `replies` in turn. Expands images as a real engine, by the family's own rule."""

    def __init__(self, template: ChatTemplate, *replies: list[int]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._template, self._replies = template, list(replies)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/abort_request":
            return httpx.Response(200)
        body = json.loads(request.content)
        self.bodies.append(body)
        ids = self._replies.pop(0)
        prompt = self._expanded(body)
        reply = answer(ids, {**STOP, "matched": ids[-1]}, prompt_tokens=len(prompt))
        return httpx.Response(200, json={**reply.json(), "prompt_token_ids": prompt})

    def _expanded(self, body: dict[str, Any]) -> list[int]:
        images = self._template.images
        if images is None:
            return list(body["input_ids"])
        files = [Image.open(_file(text)) for text in body.get("image_data", ())]
        counts = iter([images.family.features(file.height, file.width) for file in files])
        return [
            token for one in body["input_ids"] for token in [one] * (next(counts) if one == images.placeholder else 1)
        ]


def _file(text: str) -> io.BytesIO:
    return io.BytesIO(base64.b64decode(text))


def reply_ids(template: ChatTemplate, text: str) -> list[int]:
    return [*template.encode(text), turn_format(template).end_ids[0]]


def with_template(shared: Resources, template: ChatTemplate, **values: Any) -> Resources:
    """The same for a model of another template."""
    own = {one.name: getattr(shared, one.name) for one in fields(shared)}
    return Resources(**{**own, "template": template, **values})
