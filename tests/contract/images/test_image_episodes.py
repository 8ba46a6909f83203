"""Episodes with images, with real engines: what is stored is what the engine read, and its log-probs are those of the pixels."""

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool
from sampler.core.episode.episode import play
from sampler.core.episode.resources import Resources
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.episode.tools import called, tool_session
from sampler.core.rendering.template import ChatTemplate
from sampler.core.scorers import Score
from shared.documents import DispatchedSamplingTask
from shared.documents.packed import unpack_floats, unpack_ints
from shared.documents.states import Termination
from shared.images.decode import decode
from shared.images.source import DEFAULT
from shared.store import Store
from tests.contract.engines import EXACT, START_S
from tests.contract.images.test_images import picture, png
from tests.sampler.boxes import stdio
from tests.sampler.engines import Up
from tests.sampler.episodes import LIMITS, resources
from tests.shared.builders import claim, import_tasks
from tests.shared.tiny_vision_model import PATCH

pytestmark = [pytest.mark.timeout(2 * START_S), pytest.mark.slow]


class Looker(AsyncSampler):
    """Sees a picture in the question, two of a tool, and in a second thread another one of the same size."""

    uses_tools = True

    async def run(self) -> Termination:
        async with tool_session(self) as tools:
            block = {"type": "image", "base64": base64.b64encode(png(picture(4 * PATCH, 3 * PATCH, 1))).decode()}
            shown = [{"type": "text", "text": "look"}, block, {"type": "text", "text": "and draw"}]
            turn = await self.create_chat_completions([{"role": "user", "content": shown}], tools=tools.list_tools())
            for number in (1, 2):
                assert turn is not None
                arguments = {"height": 2 * PATCH, "width": 70, "shade": 80 * number}
                result = await tools.call("paint", arguments)
                self.add_tool_calls([called("paint", arguments, result, call_id="c")], turn=turn)
                assert [block["type"] for block in result.blocks] == ["text", "image", "text"]
                answer = {"role": "tool", "name": "paint", "tool_call_id": "c", "content": result.blocks}
                turn = await self.create_chat_completions([answer])
        data = png(picture(4 * PATCH, 3 * PATCH, 2))
        other = [
            {"type": "text", "text": "look"},
            {"type": "image", "bytes": data},
            {"type": "text", "text": "and draw"},
        ]
        await self.create_chat_completions(
            [{"role": "user", "content": other}], thread="second", tools=tools.list_tools()
        )
        return Termination.ANSWERED

    async def evaluate_record(self) -> Score:
        return Score(1.0)


@asynccontextmanager
async def seeing(store: Store, folder: Path, url: str) -> AsyncIterator[Resources]:
    async def services() -> list[Up]:
        return [Up(url, version=0)]

    async with resources(store, url, max_new_tokens=8, answer_instruction="none") as shared, EngineClient() as client:
        pool = EnginePool(client, services, replace(LIMITS))
        values = {one.name: getattr(shared, one.name) for one in fields(shared)}
        yield Resources(
            **{
                **values,
                "template": ChatTemplate.from_dir(folder),
                "pool": pool,
                "tool_servers": [stdio("p", "painter.py")],
            }
        )
        await pool.close()


async def test_an_episode_is_stored_as_the_engine_read_it_and_rescored_from_its_documents_alone(
    store: Store, folders: tuple[Path, Path], url: str
) -> None:
    await import_tasks(store, 1)
    async with seeing(store, folders[0], url) as shared:
        held = await claim(store)
        assert await play(Looker(shared, held)) == 1.0
    dispatches = (await store.records.dispatches_of([held.record_id]))[held.record_id]
    assert [len(one.images) for one in dispatches] == [1, 1, 1, 1]
    assert [one.parent for one in dispatches[1:]] == [dispatches[0].id, dispatches[1].id, dispatches[0].id]
    assert dispatches[3].shared_length < dispatches[0].images[0].first + 1, "nothing of another picture is shared"
    for one in dispatches:
        assert one.usage["prompt"] == prompt_length(dispatches, one)
        assert "base64" not in str(one.messages)
        assert all(
            set(block) == {"type", "sha256", "width", "height", "num_bytes"} for block in images_in(one.messages)
        )
    assert await store.database["images"].count_documents({}) == 4

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folders[0], dtype=torch.float64).eval()
    processor = Qwen2VLImageProcessorPil.from_pretrained(folders[0])
    for one in dispatches:
        ids, digests = await path_of(dispatches, one)
        pictures = [decode(await store.images.read(digest), "image", DEFAULT).rgb_HW3 for digest in digests]
        pixels = processor(images=[np.asarray(rgb) for rgb in pictures], return_tensors="pt")
        assert one.response is not None
        output = unpack_ints(one.response.output_ids)
        own = log_probs(model, ids, output.tolist(), pixels)
        assert np.abs(own - unpack_floats(one.response.output_logprobs)).max() < EXACT


def images_in(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        block for one in messages if isinstance(one["content"], list) for block in one["content"] if "sha256" in block
    ]


def prompt_length(dispatches: list[DispatchedSamplingTask], one: DispatchedSamplingTask) -> int:
    return one.shared_length + len(unpack_ints(one.prompt_ids))


async def path_of(dispatches: list[DispatchedSamplingTask], one: DispatchedSamplingTask) -> tuple[list[int], list[str]]:
    """The prompt's ids and the digests of its images, from the documents."""
    own, images = unpack_ints(one.prompt_ids).tolist(), [image.sha256 for image in one.images]
    if one.parent is None:
        return own, images
    parent = next(other for other in dispatches if other.id == one.parent)
    ids, before = await path_of(dispatches, parent)
    assert parent.response is not None
    shared = [*ids, *unpack_ints(parent.response.output_ids).tolist()][: one.shared_length]
    return [*shared, *own], [*(before if one.thread is None else []), *images]


@torch.inference_mode()
def log_probs(model: Any, prompt: list[int], output: list[int], pixels: Mapping[str, Any]) -> Any:
    ids = torch.tensor([[*prompt, *output]])
    is_image = ids == model.config.image_token_id
    is_image[0, len(prompt) :] = False
    logits = model(
        input_ids=ids,
        pixel_values=pixels["pixel_values"].double(),
        image_grid_thw=pixels["image_grid_thw"],
        mm_token_type_ids=is_image.long(),
    ).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0].numpy()
