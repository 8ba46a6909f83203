"""Image files as vLLM's processors take them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

from PIL import Image, UnidentifiedImageError

MOST_PIXELS = 32_000_000
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")


def opened(files: Sequence[bytes]) -> list[Image.Image]:
    """RGB, alpha over white. Raises ValueError for what is no image, or one of too many pixels."""
    return [_opened(data, f"image_data[{at}]") for at, data in enumerate(files)]


def _opened(data: bytes, where: str) -> Image.Image:
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{where} has {image.width} x {image.height} pixels; expected at most {MOST_PIXELS}")
            image.load()
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise ValueError(f"{where} is no image of {', '.join(FORMATS)} that can be read: {error}") from error
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")
