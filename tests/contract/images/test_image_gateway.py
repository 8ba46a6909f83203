"""Agents that send images to the tested engines: what is stored is what the engine read, and its log-probs are those of the
pixels."""

import asyncio
import base64
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.rendering.template import ChatTemplate
from sampler.gateway.agent_sampler import AgentSampler, AgentTask
from shared.documents.packed import unpack_floats, unpack_ints
from shared.images.decode import decode
from shared.images.source import DEFAULT
from shared.store import Store
from tests.contract.engines import EXACT, START_S
from tests.contract.images.test_image_episodes import log_probs, prompt_length
from tests.contract.images.test_images import picture, png
from tests.sampler.engines import Up
from tests.sampler.episodes import LIMITS, resources
from tests.shared.builders import claim, import_tasks
from tests.shared.tiny_vision_model import PATCH

pytestmark = [pytest.mark.timeout(2 * START_S), pytest.mark.slow]
MOST = 8


def shot(seed: int) -> str:
    """A PNG of whole patches, which nobody resizes, in base64."""
    return base64.b64encode(png(picture((2 + seed % 3) * PATCH, 3 * PATCH, seed))).decode()


async def by_chat(task: AgentTask) -> None:
    history: list[Any] = []
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for seed in (1, 2):
            image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{shot(seed)}"}}
            history.append({"role": "user", "content": [{"type": "text", "text": "look"}, image]})
            stream: Any = await client.chat.completions.create(
                model=task.model, messages=history, max_tokens=MOST, stream=True
            )
            pieces = [part.choices[0].delta.content or "" async for part in stream if part.choices]
            history.append({"role": "assistant", "content": "".join(pieces)})


async def by_responses(task: AgentTask) -> None:
    items: list[Any] = []
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for seed in (3, 4):
            image = {"type": "input_image", "image_url": f"data:image/png;base64,{shot(seed)}"}
            items.append({"role": "user", "content": [image, {"type": "input_text", "text": "and then?"}]})
            reply = await client.responses.create(model=task.model, input=items, max_output_tokens=MOST)
            items += [item.model_dump(exclude_none=True) for item in reply.output]


async def by_messages(task: AgentTask) -> None:
    history: list[Any] = []
    async with anthropic.AsyncAnthropic(base_url=task.url, api_key=task.api_key) as client:
        for seed in (5, 6):
            source = {"type": "base64", "media_type": "image/png", "data": shot(seed)}
            history.append({"role": "user", "content": [{"type": "image", "source": source}]})
            async with client.messages.stream(model=task.model, messages=history, max_tokens=MOST) as stream:
                reply = await stream.get_final_message()
            history.append({"role": "assistant", "content": reply.content})


async def by_google(task: AgentTask) -> None:
    contents: list[Any] = []
    async with httpx.AsyncClient(base_url=task.url, headers={"x-goog-api-key": task.api_key}, timeout=START_S) as http:
        for seed in (7, 8):
            parts = [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": shot(seed)}}]
            contents.append({"role": "user", "parts": parts})
            body = {"contents": contents, "generationConfig": {"maxOutputTokens": MOST}}
            answer = await http.post(f"/v1beta/models/{task.model}:generateContent", json=body)
            contents.append(answer.json()["candidates"][0]["content"])


async def the_agent(task: AgentTask) -> float:
    await asyncio.gather(by_chat(task), by_responses(task), by_messages(task), by_google(task))
    return 1.0


async def played(store: Store, folder: Path, url: str) -> list[Any]:
    """The requests of an episode of `the_agent`."""

    async def services() -> list[Up]:
        return [Up(url, version=0)]

    options = {"agent": f"{__name__}:the_agent", "max_turns": 20, "max_new_tokens": MOST, "answer_instruction": "none"}
    async with resources(store, url, **options) as shared, EngineClient() as client:
        pool = EnginePool(client, services, replace(LIMITS))
        values = {one.name: getattr(shared, one.name) for one in fields(shared)}
        sampler = AgentSampler(
            Resources(**{**values, "template": ChatTemplate.from_dir(folder), "pool": pool}), await claim(store)
        )
        await play(sampler)
        await pool.close()
    record = await store.records.get(sampler.claim.record_id)
    assert record is not None
    assert (record.error, record.score) == (None, 1.0), record.reward_details
    causes = {name: count for name, count in record.metrics.items() if not name.startswith("agent_overridden")}
    assert causes == {"agent_first": 1, "agent_other": 3, "agent_continued": 4}
    return (await store.records.dispatches_of([record.id]))[record.id]


async def test_images_of_four_dialects_at_once_are_stored_as_the_engine_read_them_and_rescored(
    store: Store, folders: tuple[Path, Path], url: str
) -> None:
    await import_tasks(store, 1, num_generations=1)
    dispatches = await played(store, folders[0], url)
    assert await store.database["images"].count_documents({}) == 8
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folders[0], dtype=torch.float64).eval()
    processor = Qwen2VLImageProcessorPil.from_pretrained(folders[0])
    worst, compared = 0.0, 0
    for one in dispatches:
        assert one.usage["prompt"] == prompt_length(dispatches, one)
        ids, places = path_of(dispatches, one)
        pictures = [decode(await store.images.read(digest), "image", DEFAULT).rgb_HW3 for _, digest in places]
        pixels = processor(images=[np.asarray(rgb) for rgb in pictures], return_tensors="pt")
        output = unpack_ints(one.response.output_ids)
        own = log_probs(model, ids, output.tolist(), pixels)
        worst = max(worst, float(np.abs(own - unpack_floats(one.response.output_logprobs)).max()))
        compared += len(output)
    assert worst < EXACT
    print(f"requests={len(dispatches)} tokens={compared} worst={worst:.1e}")


def path_of(dispatches: list[Any], one: Any) -> tuple[list[int], list[tuple[int, str]]]:
    """The prompt's ids, and place and digest of its images, from the documents."""
    own = unpack_ints(one.prompt_ids).tolist()
    places = [(one.shared_length + image.first, image.sha256) for image in one.images]
    if one.parent is None:
        return own, places
    parent = next(other for other in dispatches if other.id == one.parent)
    ids, before = path_of(dispatches, parent)
    shared = [*ids, *unpack_ints(parent.response.output_ids).tolist()][: one.shared_length]
    return [*shared, *own], [*(place for place in before if place[0] < one.shared_length), *places]
