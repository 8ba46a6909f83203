"""Tokens, grids and inputs of every family are those of the processors of transformers."""

import importlib.util
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    Idefics3Processor,
    Qwen2_5_VLProcessor,
    Qwen3VLProcessor,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from shared.errors import ConfigError, DataError
from shared.images.families import Family, family_of
from shared.images.families.pixels import by_pillow
from shared.images.torch_resizing import by_torch
from tests.shared.image_sizes import noise, sizes
from tests.shared.vision_models import PAD_IMAGE, VISION_FAMILIES, write_vision_model

pytestmark = pytest.mark.slow

TILED = ("idefics3", "smolvlm")
CLASSES = {
    "idefics3": Idefics3ImageProcessorPil,
    "smolvlm": SmolVLMImageProcessorPil,
    "qwen2_5_vl": Qwen2VLImageProcessorPil,
    "qwen3_vl": Qwen2VLImageProcessorPil,
}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in VISION_FAMILIES},
    "idefics3 in one piece": ("idefics3", {"do_image_splitting": False}),
    "idefics3 of other sizes": ("idefics3", {"size": {"longest_edge": 200}, "resample": 3, "image_mean": [0.4, 0.5, 0.6]}),
    "idefics3 of one size": ("idefics3", {"size": {"height": 70, "width": 90}}),
    "idefics3 not resized first": ("idefics3", {"do_resize": False, "do_pad": False}),
    "smolvlm of other sizes": ("smolvlm", {"size": {"longest_edge": 96}, "rescale_factor": 1 / 203}),
    "qwen2_5_vl of other sizes": ("qwen2_5_vl", {"min_pixels": 300, "max_pixels": 70000, "resample": 2}),
    "qwen2_5_vl with both": ("qwen2_5_vl", {"size": {"shortest_edge": 1, "longest_edge": 10000}, "min_pixels": None}),
    "qwen3_vl of other sizes": ("qwen3_vl", {"size": {"shortest_edge": 20000, "longest_edge": 30000}, "do_normalize": False}),
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directory of a model for each of SETTINGS, without weights."""
    folder = tmp_path_factory.mktemp("models")
    return {
        name: write_vision_model(folder / name.replace(" ", "_"), family, image_processor=settings, weights=False)
        for name, (family, settings) in SETTINGS.items()
    }


def chosen(model_dir: Path) -> Family:
    family = family_of(model_dir)
    assert family is not None
    return family


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_transformers(name: str, models: dict[str, Path]) -> None:
    require_tokens_of_transformers(name, models, 150)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_of_a_thousand_sizes_are_those_of_transformers(name: str, models: dict[str, Path]) -> None:
    require_tokens_of_transformers(name, models, 1000)


def require_tokens_of_transformers(name: str, models: dict[str, Path], number: int) -> None:
    family = chosen(models[name])
    reference = CLASSES[family.name].from_pretrained(models[name])
    tokenizer = AutoTokenizer.from_pretrained(models[name])
    of_tiles = "do_resize" in SETTINGS[name][1]
    for height, width in sizes(number, seed=len(name), longest=300 if of_tiles else 1500):
        image = Image.new("RGB", (width, height))
        prompt = f"What is A{family.image_token if family.name in TILED else PAD_IMAGE}?"
        text, ids = of_transformers(family.name, reference, tokenizer, prompt, image)
        tokens = family.tokens(height, width)
        ours = prompt.replace(family.image_token, tokens)
        assert ours == text, (height, width)
        placeholders = [one for one in tokenizer.encode(ours) if one == family.placeholder_id]
        assert tokenizer.encode(ours) == ids, (height, width)
        assert len(placeholders) == family.features(height, width) == sum(family.runs(height, width))


def of_transformers(
    family: str, reference: Any, tokenizer: Any, prompt: str, image: Image.Image
) -> tuple[str, list[int]]:
    """The prompt expanded by transformers, and its input_ids. The processors that need packages
    for videos are not made: their function that expands an image is called."""
    if family == "smolvlm":
        arrays = reference(image, return_tensors="np", return_row_col_info=True)
        rows, columns = arrays["rows"][0][0], arrays["cols"][0][0]
        tokens = get_image_prompt_string(rows, columns, 4, "<fake_token_around_image>", "<image>", "<global-img>")
        text = prompt.replace("<image>", tokens)
        return text, tokenizer.encode(text)
    if family == "idefics3":
        ids = Idefics3Processor(reference, tokenizer, image_seq_len=4)(images=[[image]], text=[prompt])["input_ids"][0]
        return tokenizer.decode(ids), list(ids)
    processor_class = {"qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}[family]
    parts = SimpleNamespace(image_processor=reference, image_token="<|image_pad|>")  # the whole one needs torchvision
    tokens = processor_class.replace_image_token(parts, reference(image, return_tensors="np"), 0)
    text = prompt.replace("<|image_pad|>", tokens)
    return text, tokenizer.encode(text)


@pytest.mark.parametrize("name", SETTINGS)
def test_inputs_are_those_of_transformers_bit_for_bit(name: str, models: dict[str, Path]) -> None:
    family = chosen(models[name])
    reference = CLASSES[family.name].from_pretrained(models[name])
    for height, width in sizes(60, seed=1, longest=260):
        rgb_HW3 = noise(height, width)
        expected = reference(Image.fromarray(rgb_HW3), return_tensors="np")
        inputs = family.inputs(rgb_HW3, by_pillow)
        assert inputs.keys() == expected.keys()
        for key, value in inputs.items():
            array = expected[key][0] if family.name in TILED else expected[key]
            assert value.dtype == array.dtype
            assert np.array_equal(value, array), (key, height, width)
        grid = family.grid(height, width)
        if grid is None:
            continue
        assert grid == (1, *(int(patches) // 2 for patches in expected["image_grid_thw"][0, 1:]))


# Settings of the image processor, and of the model: (patch_size, scale_factor, image_seq_len).
PUBLISHED: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "idefics3": ({"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}, (14, 2, 169)),
    "smolvlm": ({"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}, (16, 4, 64)),
    "qwen2_5_vl": ({"patch_size": 14, "min_pixels": 3136, "max_pixels": 12845056}, (14, 0, 0)),
    "qwen3_vl": ({"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}}, (16, 0, 0)),
}


def write_published(folder: Path, family: str) -> Path:
    """A directory with the sizes of the published models."""
    settings, (patch, scale, length) = PUBLISHED[family]
    write_vision_model(folder, family, image_processor=settings, weights=False)
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["patch_size"] = patch
    if scale:
        config["scale_factor"] = scale
        (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": length}))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("family_name", PUBLISHED)
def test_published_settings_give_the_inputs_of_transformers(family_name: str, tmp_path: Path) -> None:
    folder = write_published(tmp_path, family_name)
    family, reference = chosen(folder), CLASSES[family_name].from_pretrained(folder)
    for height, width in ((480, 640), (1080, 719), (37, 5000)):
        rgb_HW3 = noise(height, width)
        expected = reference(Image.fromarray(rgb_HW3), return_tensors="np")
        for key, value in family.inputs(rgb_HW3, by_pillow).items():
            assert np.array_equal(value, expected[key][0] if family_name in TILED else expected[key])


@pytest.mark.parametrize("family_name", ["qwen2_5_vl", "qwen3_vl"])
def test_grids_of_published_settings_are_those_of_transformers(family_name: str, tmp_path: Path) -> None:
    family = chosen(write_published(tmp_path, family_name))
    edge = 2 * PUBLISHED[family_name][1][0]
    least, most = (3136, 12845056) if family_name == "qwen2_5_vl" else (65536, 16777216)
    for height, width in sizes(1000, seed=5, edges=(edge, 10 * edge, 37 * edge), longest=20000):
        expected = smart_resize(height, width, edge, least, most)
        grid = family.grid(height, width)
        assert grid == (1, expected[0] // edge, expected[1] // edge), (height, width)
        assert family.features(height, width) == math.prod(grid)


@pytest.mark.parametrize("family_name", VISION_FAMILIES)
def test_the_model_makes_one_feature_for_each_placeholder(family_name: str, tmp_path: Path) -> None:
    folder = write_vision_model(tmp_path, family_name)
    family, model = chosen(folder), AutoModelForImageTextToText.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for height, width in ((40, 100), (5, 5), (90, 31)):
        inputs = {key: torch.from_numpy(value) for key, value in family.inputs(noise(height, width), by_pillow).items()}
        if family_name in TILED:
            inputs = {key: value[None] for key, value in inputs.items()}
        ids = torch.tensor([tokenizer.encode("A" + family.tokens(height, width) + "B")])
        kinds = (ids == family.placeholder_id).int()
        extra = {} if family_name in TILED else {"mm_token_type_ids": kinds}
        with torch.no_grad():
            logits = model(input_ids=ids, **inputs, **extra).logits  # raises ValueError if the numbers differ
        assert torch.isfinite(logits).all()


@pytest.mark.parametrize("family_name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("size", [(1, 201), (4100, 20)])
def test_an_aspect_ratio_above_200_is_refused_as_by_transformers(
    family_name: str, size: tuple[int, int], models: dict[str, Path]
) -> None:
    with pytest.raises(ValueError, match="aspect ratio"):
        smart_resize(*size)
    with pytest.raises(DataError, match=f"{size[0]} x {size[1]} pixels .* at most 200"):
        chosen(models[family_name]).tokens(*size)


@pytest.mark.parametrize("family_name", VISION_FAMILIES)
def test_an_image_without_pixels_is_refused(family_name: str, models: dict[str, Path]) -> None:
    with pytest.raises(DataError, match="0 x 5 pixels"):
        chosen(models[family_name]).features(0, 5)


def test_families_are_read_without_pillow_and_inputs_name_the_extra(models: dict[str, Path]) -> None:
    program = (
        "import sys, numpy as np; from pathlib import Path; sys.modules['PIL'] = None\n"
        "from shared.images.families import family_of; from shared.errors import ConfigError\n"
        "from shared.images.families.pixels import by_pillow\n"
        "family = family_of(Path(sys.argv[1])); print(family.features(40, 100))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "try: family.inputs(np.zeros((40, 100, 3), np.uint8), by_pillow)\n"
        "except ConfigError as exc: print(exc)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, str(models["qwen3_vl"])],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    count, message = child.stdout.splitlines()
    assert int(count) == chosen(models["qwen3_vl"]).features(40, 100)
    assert "tandem-rl[images]" in message


ROUNDING = 1e-6  # of float32, in values from about -2 to 2: a step of a pixel is 0.017


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is no dependency; compared where it is"
)
@pytest.mark.parametrize("family_name", VISION_FAMILIES)
def test_inputs_resized_by_torch_are_those_by_torchvision(family_name: str, models: dict[str, Path]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import Idefics3ImageProcessor, Qwen2VLImageProcessor, SmolVLMImageProcessor

        classes = {"idefics3": Idefics3ImageProcessor, "smolvlm": SmolVLMImageProcessor}
        reference = classes.get(family_name, Qwen2VLImageProcessor).from_pretrained(models[family_name])
    family = chosen(models[family_name])
    for height, width in sizes(60, seed=1, longest=260):
        rgb_HW3 = noise(height, width)
        expected = reference(Image.fromarray(rgb_HW3), return_tensors="pt")["pixel_values"].numpy()
        values = family.inputs(rgb_HW3, by_torch)["pixel_values"]
        assert np.abs(values - expected.reshape(values.shape)).max() < ROUNDING, (height, width)


def test_a_filter_that_torch_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="`resample` is 4; expected 1"):
        by_torch(noise(5, 5), 3, 3, 4)


def test_a_torch_without_lanczos_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch before 2.12 raises this ValueError; every other one is passed on."""

    def older(*_: Any, **__: Any) -> None:
        raise ValueError("Anti-alias option is restricted to bilinear and bicubic modes")

    monkeypatch.setattr(torch.nn.functional, "interpolate", older)
    with pytest.raises(ConfigError, match=r"torch 2.12 or newer, or 3 \(bicubic\) in preprocessor_config.json"):
        by_torch(noise(5, 5), 3, 3, 1)
    with pytest.raises(ValueError, match="restricted to bilinear"):
        by_torch(noise(5, 5), 3, 3, 3)
