"""Pixels: resizing, and rescaling and normalization by a table.

A pixel has one of 256 values, so its float is looked up: the table has, for each value and channel, the number that transformers
computes (rescaled in float64, rounded to float32, normalized in float32), and the result is equal bit for bit.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.errors import ConfigError
from shared.images.families.model_files import ImageSettings
from shared.images.families.protocol import Resize, RgbPixels

Float32 = npt.NDArray[np.float32]
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers


@dataclass(frozen=True, eq=False)
class Pixels:
    """`resample`: Pillow's number of a filter. `table_C256`: float of each pixel value by channel, red, green, blue."""

    resample: int
    table_C256: Float32

    @classmethod
    def read(
        cls, settings: ImageSettings, resample: int, mean: tuple[float, float, float], std: tuple[float, float, float]
    ) -> "Pixels":
        """`resample`, `mean`, `std`: the family's defaults. Raises ConfigError."""
        filter_number = settings.take("resample", resample)
        if filter_number not in FILTERS or isinstance(filter_number, bool):
            choices = ", ".join(f"{number} ({name})" for number, name in FILTERS.items())
            raise settings.wrong("resample", filter_number, f"one of {choices}")
        values_256 = np.arange(256).astype(np.float64)
        if settings.flag("do_rescale", True):
            values_256 = values_256 * settings.factor("rescale_factor", 1 / 255)
        table_C256 = np.repeat(values_256.astype(np.float32)[None], 3, axis=0)
        if settings.flag("do_normalize", True):
            deviations = settings.channels("image_std", std)
            if 0 in deviations:
                raise settings.wrong("image_std", list(deviations), "numbers other than 0")
            mean_C1 = np.array(settings.channels("image_mean", mean), dtype=np.float32)[:, None]
            table_C256 = (table_C256 - mean_C1) / np.array(deviations, dtype=np.float32)[:, None]
        for unused in ("rescale_factor", "image_mean", "image_std"):
            settings.take(unused, None)  # given, but switched off
        return cls(int(filter_number), table_C256)

    def resized(self, rgb_HW3: RgbPixels, height: int, width: int, resize: Resize) -> RgbPixels:
        """By `resize`; the image itself where it has the size."""
        if rgb_HW3.shape[:2] == (height, width):
            return rgb_HW3
        return resize(rgb_HW3, height, width, self.resample)

    def floats(self, channel: int, values: RgbPixels) -> Float32:
        """The floats of one channel's values, in an array of the same shape."""
        out = np.empty(values.shape, dtype=np.float32)
        np.take(self.table_C256[channel], values, out=out, mode="clip")  # "raise" copies `out`
        return out


def by_pillow(rgb_HW3: RgbPixels, height: int, width: int, resample: int) -> RgbPixels:
    """As transformers resizes without torchvision. Raises ConfigError without Pillow."""
    picture = pillow_image().fromarray(np.ascontiguousarray(rgb_HW3))
    return np.asarray(picture.resize((width, height), resample=resample))


def pillow_image() -> Any:
    """Pillow's module `Image`. Raises ConfigError if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as exc:
        raise ConfigError("images need Pillow; install the extra `images`: pip install 'tandem-rl[images]'") from exc
    return Image
