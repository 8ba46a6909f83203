"""Episodes with images and a scripted engine: what is stored, what the engine is sent, and how such an episode ends."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import turn_format
from shared.documents.states import Termination
from shared.store import Store
from tests.sampler.boxes import stdio
from tests.sampler.engines import STOP, answer
from tests.sampler.episodes import TEMPLATE, ended, resources
from tests.sampler.vision_chats import vision_template
from tests.shared.builders import claim, make_task
from tests.shared.image_files import image_file, valid

CALL = '<tool_call>\n{"name": "paint", "arguments": {"height": 30, "width": 20, "shade": 200}}\n</tool_call>'
FAMILY = "qwen2_5_vl"


class Engine:
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
        from PIL import Image

        files = [Image.open(_file(text)) for text in body.get("image_data", ())]
        counts = iter([images.family.features(file.height, file.width) for file in files])
        return [
            token for one in body["input_ids"] for token in [one] * (next(counts) if one == images.placeholder else 1)
        ]


def _file(text: str) -> Any:
    import io

    return io.BytesIO(base64.b64decode(text))


@pytest.fixture
def template(tmp_path: Path) -> ChatTemplate:
    return vision_template(tmp_path / "model", FAMILY, published=False)


def ids(template: ChatTemplate, text: str) -> list[int]:
    return [*template.encode(text), turn_format(template).end_ids[0]]


@asynccontextmanager
async def played(
    store: Store, engine: Engine, template: ChatTemplate, kind: type[AsyncSampler] = MCPSampler
) -> AsyncIterator[tuple[Any, Any, list[Any]]]:
    """An episode of a task whose query has an image."""
    data = valid("PNG")
    await store.images.keep([file := image_file(data)])
    block = {"type": "image", "sha256": file.sha256, "width": file.width, "height": file.height, "num_bytes": len(data)}
    payload = {"query_blocks": [{"type": "text", "text": "paint it"}, block], "query": "paint it", "answer": "4"}
    task = make_task(0)
    await store.tasks.insert_new([task.model_copy(update={"payload": task.payload.model_copy(update=payload)})])
    async with resources(store, engine, max_turns=3, answer_instruction="none") as shared:
        values = {one.name: getattr(shared, one.name) for one in fields(shared)}
        sampler = kind(
            Resources(**{**values, "template": template, "tool_servers": [stdio("p", "painter.py")]}),
            await claim(store),
        )
        await play(sampler)
        yield await ended(store, sampler)


async def test_the_standard_sampler_shows_the_querys_image_and_the_tools(store: Store, template: ChatTemplate) -> None:
    engine = Engine(template, ids(template, CALL), ids(template, "<answer>4</answer>"))
    async with played(store, engine, template) as (record, slot, dispatches):
        assert (record.termination, slot.score) == (Termination.ANSWERED, 1.0)
        first, second = dispatches
        assert [len(one.images) for one in dispatches] == [1, 1]
        assert second.parent == first.id
        [call] = first.tool_calls
        assert [block["type"] for block in call.blocks] == ["text", "image", "text"]
        assert call.result == "The picture:\n30 x 20"
        assert second.messages[0]["content"] == call.blocks
        assert [len(body["image_data"]) for body in engine.bodies] == [1, 2]
        assert "image_data" not in str(second.model_dump())


async def test_a_reply_with_the_token_of_images_ends_the_episode_as_the_models_act(
    store: Store, template: ChatTemplate
) -> None:
    assert template.images is not None
    engine = Engine(template, [*template.encode(CALL), template.images.placeholder, *ids(template, "x")])
    async with played(store, engine, template) as (record, slot, dispatches):
        assert record.termination == Termination.IMAGE_TOKEN
        assert slot.score == 0.0, "scored: the model wrote it"
        assert len(engine.bodies) == len(dispatches) == 1


class Insisting(AsyncSampler):
    """Asks again after such a reply."""

    async def run(self) -> Termination:
        await self.create_chat_completions(self.opening_messages())
        again = await self.create_chat_completions([{"role": "user", "content": "go on"}])
        assert again is None
        return Termination.ANSWERED


async def test_nothing_is_asked_behind_a_token_of_images(store: Store, template: ChatTemplate) -> None:
    assert template.images is not None
    engine = Engine(template, [template.images.placeholder, *ids(template, "x")])
    async with played(store, engine, template, Insisting) as (record, _, dispatches):
        assert record.termination == Termination.ANSWERED
        assert len(engine.bodies) == len(dispatches) == 1


async def test_a_task_with_images_for_a_model_of_text_fails_with_a_sentence(store: Store) -> None:
    async with played(store, Engine(TEMPLATE), TEMPLATE) as (record, _, dispatches):
        assert record.termination == Termination.MISCONFIGURED
        assert "the model reads texts alone, and the messages have images" in record.error
        assert dispatches == []
