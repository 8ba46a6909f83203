"""Images in requests: the engine reads the tokens that are stored, and its log-probs are those of the images' pixels."""

import asyncio
import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.generation import Generation
from sampler.core.engines.client.prompt_images import PromptImage
from sampler.core.errors import EngineContractBroken, EngineRefused
from tests.contract.engines import EXACT, START_S
from tests.contract.flights import LONG, TOO_FAST, Until, tries
from tests.shared.tiny_vision_model import IMAGE_TOKENS, PATCH

pytestmark = [pytest.mark.timeout(2 * START_S), pytest.mark.slow]

RESIZED = 0.1  # nats: PIL, which resizes here, and torch, by which the engine does, round a pixel differently
PARAMS = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    images: list[PromptImage]
    pixels: dict[str, Any]  # what transformers' processor makes of the images


class VisionReference:
    """transformers, in float64, over the same folder."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self._model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float64).eval()
        self.start, self.end, *self.placeholders = self._tokenizer.convert_tokens_to_ids(list(IMAGE_TOKENS))
        self.image = self.placeholders[0]

    def prompt(self, images: Sequence[Image.Image], question: str = "and then") -> Prompt:
        """The images one after the other, each behind a text, and the question."""
        pixels = self._processor(images=list(images), return_tensors="pt")
        ids: list[int] = []
        spans: list[PromptImage] = []
        for at, (image, grid) in enumerate(zip(images, pixels["image_grid_thw"].tolist(), strict=True)):
            ids += [*self._encode(f"picture {at}"), self.start]
            features = grid[0] * grid[1] * grid[2] // 4
            spans.append(
                PromptImage(len(ids), len(ids) + features, self.image, png(image), frozenset(self.placeholders))
            )
            ids += [*[self.image] * features, self.end]
        return Prompt(ids + self._encode(question), spans, dict(pixels))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    @torch.inference_mode()
    def distance(self, prompt: Prompt, found: Generation) -> float:
        """The largest difference of a log-prob, in nats. Up to a sampled image token, which transformers takes for an image."""
        output = list(takewhile(lambda token: token not in self.placeholders, found.output_ids))
        ids = torch.tensor([[*prompt.ids, *output]])
        logits = self._model(
            input_ids=ids,
            pixel_values=prompt.pixels["pixel_values"].double(),
            image_grid_thw=prompt.pixels["image_grid_thw"],
            mm_token_type_ids=(ids == self.image).long(),
        ).logits[0, len(prompt.ids) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])[:, 0]
        return float((own - torch.tensor(found.logprobs[: len(output)], dtype=torch.float64)).abs().max())


def picture(height: int, width: int, seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


async def test_log_probs_are_those_of_the_pixels_and_the_prompt_is_read_as_it_is_stored(
    folders: tuple[Path, Path], url: str, client: EngineClient
) -> None:
    reference = VisionReference(folders[0])
    sizes = [[(4 * PATCH, 6 * PATCH)], [(2 * PATCH, 2 * PATCH), (8 * PATCH, 3 * PATCH)], [(PATCH * 2, PATCH * 9)] * 3]
    prompts = [
        reference.prompt([picture(*size, seed=10 * at + n) for n, size in enumerate(of_prompt)])
        for at, of_prompt in enumerate(sizes)
    ]
    asked = [client.generate(url, p.ids, PARAMS, f"exact-{at}", images=p.images) for at, p in enumerate(prompts)]
    for prompt, found in zip(prompts, await asyncio.gather(*asked), strict=True):
        assert found.prompt_tokens == len(prompt.ids)
        assert reference.distance(prompt, found) < EXACT


async def test_an_image_that_is_resized_has_as_many_tokens_and_nearly_the_same_pixels(
    folders: tuple[Path, Path], url: str, client: EngineClient
) -> None:
    reference = VisionReference(folders[0])
    sizes = [(20, 31), (97, 301), (333, 500), (28, 1000), (700, 650)]
    prompts = [reference.prompt([picture(*size, seed=at)]) for at, size in enumerate(sizes)]
    for at, prompt in enumerate(prompts):
        found = await client.generate(url, prompt.ids, PARAMS, f"resized-{at}", images=prompt.images)
        assert reference.distance(prompt, found) < RESIZED


async def test_the_same_ids_with_another_image_share_no_cache(
    folders: tuple[Path, Path], url: str, client: EngineClient
) -> None:
    reference = VisionReference(folders[0])
    first, second = (reference.prompt([picture(8 * PATCH, 8 * PATCH, seed)], "what is it") for seed in (1, 2))
    assert first.ids == second.ids
    for prompt, name in ((first, "a"), (second, "b"), (first, "c")):
        found = await client.generate(url, prompt.ids, PARAMS, f"cache-{name}", images=prompt.images)
        assert reference.distance(prompt, found) < EXACT
        assert (found.cached_tokens > 32) == (name == "c")


async def test_a_prompt_with_other_image_tokens_than_the_engine_reads_is_refused(
    folders: tuple[Path, Path], url: str, client: EngineClient
) -> None:
    prompt = VisionReference(folders[0]).prompt([picture(4 * PATCH, 4 * PATCH, 3)])
    larger = replace(prompt.images[0], data=png(picture(4 * PATCH, 5 * PATCH, 3)))
    message = f"a prompt of {len(prompt.ids) + 4} tokens, and {len(prompt.ids)} are stored; from token {larger.stop} "
    with pytest.raises(EngineContractBroken, match=message):
        await client.generate(url, prompt.ids, PARAMS, "larger", images=[larger])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GIF89a and nothing more", "image_data.0.(: | is no image of PNG)"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image_data.0.(: SVG| is no image of PNG)"),
        (png(Image.new("RGB", (64, 64)))[:90], "image_data.0.(: PNG| is no image of PNG)"),
        (png(Image.new("1", (6_000, 6_000))), "6000 x 6000 pixels; expected "),
    ],
)
async def test_what_is_no_image_is_refused_and_the_engine_goes_on(
    folders: tuple[Path, Path], kind: str, url: str, client: EngineClient, data: bytes, message: str
) -> None:
    if kind == "sglang":
        pytest.skip("SGLang opens images by its own code; the client sends it images that were decoded before")
    prompt = VisionReference(folders[0]).prompt([picture(4 * PATCH, 4 * PATCH, 3)])
    image = prompt.images[0]
    broken = PromptImage(image.start, image.stop, image.token, data, image.placeholders)
    with pytest.raises(EngineRefused, match=message):
        await client.generate(url, prompt.ids, PARAMS, "broken", images=[broken])
    assert (await client.generate(url, prompt.ids, PARAMS, "whole", images=prompt.images)).output_ids


async def test_new_weights_of_the_vision_tower_count_for_images_that_were_read_before(
    folders: tuple[Path, Path], url: str, client: EngineClient
) -> None:
    prompt = VisionReference(folders[0]).prompt([picture(6 * PATCH, 6 * PATCH, 4)])
    try:
        for version in (0, 1):
            await client.pause(url, "retract")
            await client.update_weights_from_disk(url, str(folders[version]), version)
            await client.resume(url)
            found = await client.generate(url, prompt.ids, PARAMS, f"version-{version}", images=prompt.images)
            assert found.version_runs == [[version, PARAMS["max_new_tokens"]]]
            assert VisionReference(folders[version]).distance(prompt, found) < EXACT
    finally:
        await client.pause(url, "retract")
        await client.update_weights_from_disk(url, str(folders[0]), 0)
        await client.resume(url)


async def test_a_request_whose_image_was_in_the_cache_continues_after_the_cache_was_emptied(
    folders: tuple[Path, Path], url: str, client: EngineClient, until: Until
) -> None:
    reference = VisionReference(folders[0])
    prompt = reference.prompt([picture(6 * PATCH, 6 * PATCH, 5)], "and then what is it, in as many words as there are")
    await client.generate(url, prompt.ids, PARAMS, "first", images=prompt.images)
    for at in tries():
        again = asyncio.create_task(client.generate(url, prompt.ids, LONG, f"again-{at}", images=prompt.images))

        async def begun(request: "asyncio.Task[Generation]" = again) -> bool:
            return request.done() or (await client.load(url)).running > 0

        await until(begun)
        await client.pause(url, "retract")
        load = await client.load(url)
        await client.resume(url)
        found = await asyncio.wait_for(again, 120)
        assert reference.distance(prompt, found) < EXACT
        if load.running + load.waiting > 0:
            return
    raise AssertionError(TOO_FAST)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "image_data.0. is int; expected the image file as base64"),
        ("%%%", "is not base64"),
        ([base64.b64encode(b"x").decode()] * 257, "257 images for one prompt; expected at most 256"),
    ],
)
def test_malformed_image_data_is_a_400(kind: str, url: str, given: object, message: str) -> None:
    if kind == "sglang":
        pytest.skip("these checks are of our own HTTP route, which SGLang does not use")
    answer = httpx.post(f"{url}/generate", json={"input_ids": [1, 2, 3], "image_data": given}, timeout=30)
    assert answer.status_code == 400
    assert message.replace(".0.", "[0]") in answer.text


def test_the_model_says_that_it_reads_images(url: str) -> None:
    assert httpx.get(f"{url}/model_info", timeout=30).json()["has_image_understanding"] is True
