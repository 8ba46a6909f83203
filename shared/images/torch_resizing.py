"""Resizing of images as engines do it: by torch, in 8 bits, antialiased. For the trainer and the local engine, which have torch.

vLLM and SGLang use the image processors of transformers on torchvision, whose `resize` of a tensor is torch's `interpolate`.
Pillow rounds some pixels differently, which an untrained Qwen2.5-VL answers with log-probs 0.02 nats off for noise.
"""

import numpy as np
import torch
from torch.nn import functional

from shared.errors import ConfigError
from shared.images.families.protocol import RgbPixels

# By Pillow's number. Before torch 2.12, and where an engine resizes on a GPU, transformers takes the bicubic filter in place of
# Lanczos'.
_MODES = {1: "lanczos", 2: "bilinear", 3: "bicubic"}


def by_torch(rgb_HW3: RgbPixels, height: int, width: int, resample: int) -> RgbPixels:
    """Raises ConfigError for a filter that torch does not have."""
    mode = _MODES.get(resample)
    if mode is None:
        raise ConfigError(
            f"the image processor's `resample` is {resample}; expected 1 (Lanczos), 2 (bilinear) or 3 (bicubic), which torch has"
        )
    image_1CHW = torch.from_numpy(np.ascontiguousarray(rgb_HW3)).permute(2, 0, 1)[None]
    try:
        resized_1CHW = functional.interpolate(image_1CHW, size=(height, width), mode=mode, antialias=True)
    except ValueError as exc:
        if mode != "lanczos":
            raise
        raise ConfigError(
            f"the image processor's `resample` is 1 (Lanczos), which torch {torch.__version__} does not have; expected torch "
            "2.12 or newer, or 3 (bicubic) in preprocessor_config.json, as engines with such a torch compute it"
        ) from exc
    found: RgbPixels = resized_1CHW[0].permute(1, 2, 0).contiguous().numpy()
    return found
