"""Images of a /generate body: which shapes are files, and what an engine opens them to."""

import base64
import io
from typing import Any

import pytest
from PIL import Image

from sampler.engine.api.errors import ApiError
from sampler.engine.api.generation import Limits
from sampler.engine.api.protocol import parse_generate
from sampler.engine.vllm.pictures import opened


def limits(images: int) -> Limits:
    return Limits(100, 50, frozenset(), lambda _: [1], name="the engine", images=images)


def file(image: Image.Image, form: str = "PNG") -> bytes:
    written = io.BytesIO()
    image.save(written, form)
    return written.getvalue()


ONE = file(Image.new("RGB", (3, 2), (10, 20, 30)))
TEXT = base64.b64encode(ONE).decode()


@pytest.mark.parametrize(
    ("body", "files"),
    [
        ({"input_ids": [1]}, [()]),
        ({"input_ids": [1], "image_data": TEXT}, [(ONE,)]),
        ({"input_ids": [1], "image_data": [TEXT, f"data:image/png;base64,{TEXT}"]}, [(ONE, ONE)]),
        ({"input_ids": [[1], [2], [3]], "image_data": [[TEXT], None, TEXT]}, [(ONE,), (), (ONE,)]),
    ],
)
def test_each_prompt_has_its_files(body: dict[str, Any], files: list[tuple[bytes, ...]]) -> None:
    sequences, _ = parse_generate(body, limits(images=2))
    assert [one.images for one in sequences] == files


@pytest.mark.parametrize(
    ("body", "most", "message"),
    [
        ({"input_ids": [1], "image_data": TEXT}, 0, "image_data is not supported by the engine with this model"),
        ({"input_ids": [1], "image_data": [TEXT] * 3}, 2, "3 images for one prompt; expected at most 2"),
        ({"input_ids": [[1], [2]], "image_data": [TEXT]}, 2, "equal to the batch size"),
        ({"input_ids": [1], "image_data": [TEXT, 5]}, 2, r"image_data\[1\] is int"),
        ({"input_ids": [1], "image_data": "https://example.com/a.png"}, 2, "begins with 'https://example.com/a.png'"),
        ({"input_ids": [1], "image_data": "A" * 50_000_000}, 2, "50000000 characters; expected a file of at most"),
    ],
)
def test_other_shapes_are_refused(body: dict[str, Any], most: int, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        parse_generate(body, limits(images=most))


def test_alpha_is_over_white_palettes_and_grey_are_rgb() -> None:
    clear = Image.new("RGBA", (1, 1), (200, 0, 0, 0))
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    grey = Image.new("L", (1, 1), 77)
    palette = Image.new("RGB", (1, 1), (5, 6, 7)).convert("P", palette=Image.Palette.ADAPTIVE)
    images = opened([file(one) for one in (clear, half, grey, palette)])
    assert {image.mode for image in images} == {"RGB"}
    assert [image.getpixel((0, 0)) for image in images] == [(255, 255, 255), (127, 127, 127), (77, 77, 77), (5, 6, 7)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (file(Image.new("RGB", (4, 4)), "TIFF"), r"image_data\[1\] is no image of PNG, JPEG"),
        (ONE[:45], r"image_data\[1\] is no image"),
        (b"", r"image_data\[1\] is no image"),
        (file(Image.new("1", (6_000, 6_000))), "6000 x 6000 pixels; expected at most 32000000"),
        (file(Image.new("1", (60_000, 3_000))), "image_data.1. is no image|pixels"),
    ],
)
def test_what_cannot_be_opened_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened([ONE, data])
