"""Images that a world shows, as files: of arrays, nested lists and Pillow's images a PNG; a file stays as it is.

    uint8 HxWx3, HxWx4, HxWx1, HxW, 3xHxW, 1xHxW        floats from 0 to 1, True and False        lists of lists (JSON)
    Pillow's image        b"\\x89PNG…" of PNG, JPEG, WebP, GIF or BMP        "data:image/png;base64,…", or base64 alone

Standard library only, as workers are: an array brings its numpy. Scaling needs numpy for pixels, and Pillow for files.
"""

import base64
import binascii
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.errors import DataError
from shared.images.header import DATA_URL, header_of
from shared.images.png import png

MAX_FRAME_PIXELS = 16_000_000  # as samplers take them
_CHANNELS = (1, 3, 4)  # gray; red, green and blue; the same with alpha
_BOX = 4  # Pillow's resampling by areas
ARRAYS = "an array of uint8, or of numbers from 0 to 1, of HxWx3, HxW, HxWx1, HxWx4 or 3xHxW"


class NotAnImage(ValueError):
    """The text is what was expected."""


@dataclass(frozen=True, slots=True)
class _Pixels:
    """`raw`: rows of 8 bits, without padding."""

    height: int
    width: int
    channels: int
    raw: bytes


def is_image(value: Any) -> bool:
    """Whether a value of no JSON type may be an image: bytes, an array of two or three dimensions, Pillow's image."""
    if isinstance(value, bytes | bytearray):
        return True
    return _is_pillow(value) or (hasattr(value, "dtype") and len(getattr(value, "shape", ())) in (2, 3))


def image_file(value: Any, longest_edge: int | None = None) -> bytes:
    """`longest_edge`: pixels; a larger image is scaled down to it. Raises NotAnImage."""
    if isinstance(value, str):
        value = _decoded(value)
    if isinstance(value, bytes | bytearray):
        return _file(bytes(value), longest_edge)
    if _is_pillow(value):
        return _of_pillow(value, longest_edge)
    pixels = _of_lists(value) if isinstance(value, list | tuple) else _of_array(value)
    if longest_edge is not None and max(pixels.height, pixels.width) > longest_edge:
        pixels = _scaled(pixels, longest_edge)
    return png(pixels.raw, pixels.width, pixels.height, pixels.channels)


# ---------------------------------------------------------------------- forms


def _decoded(text: str) -> bytes:
    head, comma, rest = text.partition(",")
    if comma and not (head.startswith(DATA_URL) and head.endswith(";base64")):
        raise NotAnImage("a URL that begins with data:image/…;base64, (no host is asked for an image), or base64")
    try:
        return base64.b64decode(rest if comma else text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise NotAnImage(f"an image in base64 ({exc})") from exc


def _file(data: bytes, longest_edge: int | None) -> bytes:
    try:
        header = header_of(data, "the file")
    except DataError as exc:
        raise NotAnImage(f"an image file ({exc})") from exc
    _require_few(header.height, header.width)
    if longest_edge is None or max(header.height, header.width) <= longest_edge:
        return data
    try:
        from io import BytesIO

        from PIL import Image
    except ImportError as exc:
        raise NotAnImage(
            f"at most {longest_edge} pixels, or Pillow in the workers' Python, which scales files"
        ) from exc
    with Image.open(BytesIO(data), formats=[header.format]) as image:
        return _of_pillow(image, longest_edge)


def _is_pillow(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("getbands", "convert", "tobytes", "resize"))


def _of_pillow(image: Any, longest_edge: int | None) -> bytes:
    has_alpha = "A" in image.getbands() or "transparency" in image.info
    image = image.convert("RGBA" if has_alpha else "L" if image.mode in ("1", "L") else "RGB")
    if longest_edge is not None and max(image.size) > longest_edge:
        height, width = _size(image.height, image.width, longest_edge)
        image = image.resize((width, height), _BOX)
    _require_few(image.height, image.width)
    return png(image.tobytes(), image.width, image.height, len(image.getbands()))


def _of_array(array: Any) -> _Pixels:
    """Of numpy's and torch's. Raises NotAnImage."""
    shape = tuple(getattr(array, "shape", ()))
    if len(shape) not in (2, 3) or not hasattr(array, "dtype"):
        raise NotAnImage(f"{ARRAYS}, an image of Pillow, or the bytes of a file")
    if hasattr(array, "detach"):
        array = array.detach().cpu().numpy()
    height, width, channels, is_first = _dimensions(shape)
    array = _of_8_bits(array)
    return _Pixels(height, width, channels, (array.transpose(1, 2, 0) if is_first else array).tobytes())


def _of_8_bits(array: Any) -> Any:
    """Raises NotAnImage for numbers beyond the bounds, and NaN."""
    kind = array.dtype.kind
    if str(array.dtype) == "uint8":
        return array
    least, most = (0, 255) if kind in "iu" else (0, 1)
    if kind not in "iufb" or not (array.min() >= least and array.max() <= most):
        raise NotAnImage(f"{ARRAYS}; whole numbers from 0 to 255")
    return array.astype("uint8") if kind in "iu" else (array * 255.0).round().astype("uint8")


def _dimensions(shape: Sequence[int]) -> tuple[int, int, int, bool]:
    """Height, width, channels, and whether the channels come first. Raises NotAnImage."""
    if len(shape) == 2:
        (height, width), channels, is_first = shape, 1, False
    elif shape[2] in _CHANNELS:
        (height, width, channels), is_first = shape, False
    elif shape[0] in (1, 3):
        (channels, height, width), is_first = shape, True
    else:
        raise NotAnImage(ARRAYS)
    _require_few(height, width)
    return height, width, channels, is_first


def _of_lists(rows: Sequence[Any]) -> _Pixels:
    """Of whole numbers from 0 to 255, in rows, as JSON has an array of HxWx3 or HxW."""
    shape: list[int] = []
    inner: Any = rows
    while isinstance(inner, list | tuple) and inner and len(shape) < 4:
        shape.append(len(inner))
        inner = inner[0]
    if len(shape) not in (2, 3):
        raise NotAnImage("lists of rows of whole numbers from 0 to 255: HxWx3 or HxW")
    height, width, channels, is_first = _dimensions(shape)
    flat: Any = rows
    for _ in shape[1:]:
        flat = itertools.chain.from_iterable(flat)
    try:
        raw = bytes(flat)
    except (TypeError, ValueError) as exc:
        raise NotAnImage(f"lists of rows of whole numbers from 0 to 255 ({exc})") from exc
    if is_first or len(raw) != height * width * channels:
        raise NotAnImage("lists of rows of equal lengths: HxWx3 or HxW")
    return _Pixels(height, width, channels, raw)


def _require_few(height: int, width: int) -> None:
    if height < 1 or width < 1 or height * width > MAX_FRAME_PIXELS:
        raise NotAnImage(f"from 1 to {MAX_FRAME_PIXELS:,} pixels, not {width} x {height}")


# ---------------------------------------------------------------------- size, and the file


def _size(height: int, width: int, longest_edge: int) -> tuple[int, int]:
    factor = longest_edge / max(height, width)
    return max(1, round(height * factor)), max(1, round(width * factor))


def _scaled(pixels: _Pixels, longest_edge: int) -> _Pixels:
    """Each new pixel is the mean of the area that it covers."""
    try:
        import numpy as np
    except ImportError as exc:
        raise NotAnImage(f"at most {longest_edge} pixels, or numpy in the workers' Python, which scales") from exc
    array = np.frombuffer(pixels.raw, np.uint8).reshape(pixels.height, pixels.width, pixels.channels)
    height, width = _size(pixels.height, pixels.width, longest_edge)
    for axis, size in enumerate((height, width)):
        array = _means(np, array, axis, size)
    return _Pixels(height, width, pixels.channels, (array + 0.5).astype(np.uint8).tobytes())


def _means(np: Any, array: Any, axis: int, size: int) -> Any:
    """Along one axis: differences of the running sum, at the edges of the new pixels."""
    length = array.shape[axis]
    sums = np.insert(np.cumsum(array, axis=axis, dtype=np.float64), 0, 0.0, axis=axis)
    edges = np.arange(size + 1) * (length / size)
    whole = np.minimum(edges.astype(int), length - 1)
    part = (edges - whole).reshape([-1 if one == axis else 1 for one in range(array.ndim)])
    below, above = np.take(sums, whole, axis), np.take(sums, whole + 1, axis)
    return np.diff(below + part * (above - below), axis=axis) * (size / length)
