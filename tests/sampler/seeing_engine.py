"""A scripted engine that reads images as real ones do: one token each, replaced by the family's own tokens."""

import base64
import json
from dataclasses import fields
from typing import Any

import httpx

from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from shared.images.header import header_of
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

    def files(self, number: int) -> list[bytes]:
        """Images of a request."""
        return _files(self.bodies[number])

    def _expanded(self, body: dict[str, Any]) -> list[int]:
        images = self._template.images
        if images is None:
            return list(body["input_ids"])
        headers = [header_of(data, "image") for data in _files(body)]
        texts = iter([images.family.tokens(header.height, header.width) for header in headers])
        expanded: list[int] = []
        for one in body["input_ids"]:
            expanded += self._template.encode(next(texts)) if one == images.placeholder else [one]
        return expanded


def _files(body: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(text) for text in body.get("image_data", ())]


def reply_ids(template: ChatTemplate, text: str) -> list[int]:
    return [*template.encode(text), turn_format(template).end_ids[0]]


def with_template(shared: Resources, template: ChatTemplate, **values: Any) -> Resources:
    """The same for a model of another template."""
    own = {one.name: getattr(shared, one.name) for one in fields(shared)}
    return Resources(**{**own, "template": template, **values})
