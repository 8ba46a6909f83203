"""The tower computes an image once for each version, keeps bounded memory, and reads a file again where that is gone."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sampler.engine.api.generation import SamplingParams
from sampler.engine.local import image_reader
from sampler.engine.local.batching import Batching
from sampler.engine.local.image_reader import ImageReader
from sampler.engine.local.prompt_images import mrope
from sampler.engine.local.runner import EngineSize, UnsupportedModelError, load, vision_forward
from sampler.engine.local.running import RunningSequence
from sampler.engine.local.vision import Vision
from sampler.engine.local.weights import live_name
from tests.sampler.engine.local.harness import ROUNDING
from tests.sampler.engine.local.picture_prompts import PicturePrompt, PictureReference, picture, write_seeing_model
from trainer.trees.images import mrope_positions

SMALL = EngineSize(max_running_requests=2, kv_cache_bytes=8_000_000, context_length=512, num_threads=1)


class Served:
    """The parts of an engine, without threads. `calls`: images that the tower has computed."""

    def __init__(self, folder: Path, reference: PictureReference) -> None:
        self.reference = reference
        self.reader = ImageReader.of(folder, reference.encode)
        self.loaded = load(folder, SMALL, self.reader.family)
        self.calls = 0
        compute = self.loaded.model.get_image_features

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return compute(*args, **kwargs)

        self.loaded.model.get_image_features = counted
        self.vision = Vision(self.loaded.model, self.reader)
        self.batching = Batching(self.loaded.forward, self.loaded.kv, lambda ids, skip: "", "0", self.vision)

    def read(self, prompt: PicturePrompt) -> RunningSequence:
        g = RunningSequence("one", prompt.sent, SamplingParams(max_new_tokens=6), 6, frozenset())
        g.show(*self.reader.read(prompt.sent, [base64.b64decode(one) for one in prompt.files]))
        return g

    @torch.inference_mode()
    def generate(self, g: RunningSequence) -> RunningSequence:
        self.batching.waiting.append(g)
        while g.finish is None:
            self.batching.step()
        return g

    def assert_exact(self, prompt: PicturePrompt) -> None:
        g = self.generate(self.read(prompt))
        assert g.logprobs == pytest.approx(self.reference.log_probs(0, prompt, g.output), abs=ROUNDING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_seeing_model(tmp_path_factory.mktemp("seeing") / "model", "qwen3_vl", 0)


@pytest.fixture(scope="module")
def reference(folder: Path) -> PictureReference:
    return PictureReference([folder])


@pytest.fixture
def served(folder: Path, reference: PictureReference) -> Served:
    return Served(folder, reference)


def test_an_image_is_computed_once_for_each_version_of_the_weights(served: Served) -> None:
    images = [picture(64, 64, 1), picture(64, 64, 2)]
    for shown, calls in ((images[:1], 1), (images, 2), (images[::-1] * 2, 2), (images, 2)):
        served.assert_exact(served.reference.prompt(shown))
        assert served.calls == calls
    served.batching.forget()
    served.assert_exact(served.reference.prompt(images))
    assert served.calls == 4


def test_an_image_of_a_cached_prefix_is_not_computed_again(served: Served) -> None:
    images = [picture(64, 64, 1), picture(64, 64, 2)]
    served.assert_exact(served.reference.prompt(images[:1]))
    served.vision.forget()  # its features, and not the prefixes
    served.assert_exact(served.reference.prompt(images[:1]))
    assert served.calls == 1


def test_features_and_inputs_have_bounds_and_are_computed_again_beyond_them(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.vision._cached, "_most", 1)
    monkeypatch.setattr(image_reader, "INPUT_BYTES", 1)
    prompt = served.reference.prompt([picture(64, 64, seed) for seed in range(3)])
    g = served.read(prompt)
    assert g.shown is not None
    assert [image.inputs is None for image in g.shown.images] == [True, True, False]
    served.generate(g)
    assert g.logprobs == pytest.approx(served.reference.log_probs(0, prompt, g.output), abs=ROUNDING)
    assert len(served.vision._cached) == 1
    served.batching.forget()
    served.assert_exact(prompt)


def test_an_image_that_cannot_be_read_again_ends_its_request_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = served.reference.prompt([picture(64, 64, 1)])
    bad = served.read(served.reference.prompt([picture(64, 64, 2)]))
    assert bad.shown is not None
    bad.shown.images[0].inputs = None

    def stalls(*args: Any) -> Any:
        raise TimeoutError("not decoded within 300 s: the machine stalls")

    other = served.read(good)
    with monkeypatch.context() as patched:
        patched.setattr(image_reader, "decode", stalls)
        served.batching.waiting.append(other)
        served.generate(bad)
    assert bad.finish is not None
    assert (bad.finish["type"], bad.finish["status_code"]) == ("abort", 503)
    while other.finish is None:
        with torch.inference_mode():
            served.batching.step()
    assert other.logprobs == pytest.approx(served.reference.log_probs(0, good, other.output), abs=ROUNDING)


def test_a_model_whose_positions_are_computed_otherwise_is_refused_at_start(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sampler.engine.local import lean

    monkeypatch.setattr(lean, "_rotary_axes", lambda inner, size: torch.zeros(size, dtype=torch.int64))
    with torch.inference_mode(), pytest.raises(UnsupportedModelError, match="differ from transformers' by"):
        vision_forward(served.loaded.model, served.loaded.kv, served.reader.family)


@pytest.mark.parametrize("starts", [(), (0,), (3, 11, 40), (2, 6, 10)])
def test_positions_are_those_of_the_trainer(starts: Sequence[int]) -> None:
    grids = [(1, 2, 2), (1, 2, 2), (1, 3, 7)][: len(starts)]
    image_N, feature_N = np.full(70, -1), np.full(70, -1)
    for number, (start, grid) in enumerate(zip(starts, grids, strict=True)):
        size = int(np.prod(grid))
        image_N[start : start + size], feature_N[start : start + size] = number, np.arange(size)
    expected_3N = mrope_positions(np.arange(-1, 69), image_N, feature_N, grids)
    found_3N, shift = mrope(70, starts, grids)
    assert (expected_3N == (np.arange(70) if found_3N is None else found_3N)).all()
    assert expected_3N[0, -1] + 1 == 70 + shift


def test_names_on_disk_lead_to_the_models() -> None:
    live = {"model.language_model.norm.weight": 1, "model.visual.norm.weight": 2, "lm_head.weight": 3}
    names = ("model.norm.weight", "visual.norm.weight", "lm_head.weight", "norm.weight")
    found = [live_name(name, live) for name in names]
    assert found == [*live, "norm.weight"]
