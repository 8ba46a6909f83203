"""Compares our CPU time for the input arrays of a vision tower with that of transformers' image processors.

    python -m scripts.bench.image_inputs [--repeats N] [--json F] [--quick]

The settings are those of a published model of each family; pixels are random. Both compute the same image in turn, `--repeats`
times; a figure is the median of the process's CPU time in ms (threads included), `ratio` is transformers' over ours, and `equal`
says whether all arrays are equal bit for bit. transformers' classes are those that use Pillow.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from shared.images.families import Family, family_of
from shared.images.families.pixels import by_pillow
from shared.images.families.protocol import RgbPixels

HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
# preprocessor_config.json of each, with the keys of config.json that belong to it.
MODELS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "idefics3": (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, **HALF},
        {"vision_config": {"patch_size": 16}, "scale_factor": 4},  # SmolVLM's
    ),
    "qwen2_5_vl": (
        {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 12845056}},
        {"vision_config": {"patch_size": 14}},
    ),
    "qwen3_vl": (
        {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **HALF},
        {"vision_config": {"patch_size": 16}},
    ),
}
SIZES = ((768, 1024), (1080, 1920))  # height, width


def measure(options: Options) -> Tables:
    rows: list[Row] = []
    for name in MODELS:
        family, reference = ours(name, options.folder / name), of_transformers(name)
        for height, width in SIZES[: options.sizes]:
            rgb_HW3 = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
            rows.append(
                {
                    "family": name,
                    "height": height,
                    "width": width,
                    **compared(family, reference, rgb_HW3, options.repeats),
                }
            )
    return {"CPU ms of an image": rows}


def ours(name: str, folder: Path) -> Family:
    """The family of a directory without weights, whose tokenizer has the image token alone."""
    settings, config = MODELS[name]
    token = "<image>" if name == "idefics3" else "<|image_pad|>"
    processor = {"image_seq_len": 64} if name == "idefics3" else {}
    files = {
        "config.json": {"model_type": name, "image_token_id": 1, **config},
        "preprocessor_config.json": settings,
        "processor_config.json": processor,
        "tokenizer.json": {"added_tokens": [{"id": 1, "content": token}]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    family = family_of(folder)
    assert family is not None
    return family


def of_transformers(name: str) -> Callable[[RgbPixels], Mapping[str, Any]]:
    from PIL import Image
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings, _ = MODELS[name]
    processor = (Idefics3ImageProcessorPil if name == "idefics3" else Qwen2VLImageProcessorPil)(**settings)
    return lambda rgb_HW3: processor(Image.fromarray(rgb_HW3), return_tensors="np")


def compared(
    family: Family, reference: Callable[[RgbPixels], Mapping[str, Any]], rgb_HW3: RgbPixels, repeats: int
) -> Row:
    """The first turn is left out of the figures: it imports and fills caches."""
    ours_ms, theirs_ms = [], []
    for _ in range(repeats + 1):
        start = time.process_time()
        inputs = family.inputs(rgb_HW3, by_pillow)
        middle = time.process_time()
        expected = reference(rgb_HW3)
        ours_ms.append(1000 * (middle - start))
        theirs_ms.append(1000 * (time.process_time() - middle))
    equal = all(np.array_equal(value, expected[key].reshape(value.shape)) for key, value in inputs.items())
    own, theirs = statistics.median(ours_ms[1:]), statistics.median(theirs_ms[1:])
    height, width = rgb_HW3.shape[:2]
    tokens = family.features(height, width)
    return {"tokens": tokens, "ours ms": own, "transformers ms": theirs, "ratio": theirs / own, "equal": equal}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="images of each size (default 15)")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="number of sizes (default all)")
    run_benchmark(parser, measure, repeats=1, sizes=1)
