"""Images that a world shows become files with the same pixels, in whatever form the world has them."""

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from sampler.environments.checked_step import checked
from sampler.environments.environment import Step, user_shows
from sampler.environments.pixels import NotAnImage, image_file
from shared.images.decode import decode

RGB: npt.NDArray[np.uint8] = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
GRAY = RGB[..., 0]


def pixels_of(file: bytes) -> npt.NDArray[np.uint8]:
    """As samplers decode them: height x width x 3."""
    return decode(file, "the image").rgb_HW3


def saved(array: npt.NDArray[np.uint8], kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (RGB, RGB),
        (RGB.tolist(), RGB),
        (RGB.astype(np.int64), RGB),
        (RGB / 255, RGB),
        ((RGB / 255).astype(np.float32), RGB),
        (np.ascontiguousarray(RGB.transpose(2, 0, 1)), RGB),
        (np.asfortranarray(RGB), RGB),
        (RGB[::-1], RGB[::-1]),
        (torch.from_numpy(RGB.copy()), RGB),
        (Image.fromarray(RGB), RGB),
        (GRAY, np.stack([GRAY] * 3, -1)),
        (GRAY[..., None], np.stack([GRAY] * 3, -1)),
        (GRAY.tolist(), np.stack([GRAY] * 3, -1)),
        (GRAY > 99, np.stack([np.where(GRAY > 99, 255, 0)] * 3, -1)),
        (Image.fromarray(GRAY), np.stack([GRAY] * 3, -1)),
        (Image.fromarray(RGB).convert("P", palette=Image.Palette.ADAPTIVE, colors=256), RGB),
        (np.concatenate([RGB, np.full((5, 7, 1), 255, np.uint8)], -1), RGB),
        (np.concatenate([RGB, np.zeros((5, 7, 1), np.uint8)], -1), np.full_like(RGB, 255)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_pixels_are_those_of_the_array(value: Any, expected: npt.NDArray[np.uint8]) -> None:
    assert np.array_equal(pixels_of(image_file(value)), expected)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_file_stays_as_it_is_also_in_base64(kind: str) -> None:
    data = saved(RGB, kind)
    text = base64.b64encode(data).decode()
    assert image_file(data) == image_file(text) == image_file(f"data:image/{kind.lower()};base64,{text}") == data
    assert image_file(data, longest_edge=7) == data


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3, 4]))), st.integers(1, 20)
)
def test_a_smaller_image_has_the_means_of_the_areas(array: npt.NDArray[np.uint8], longest_edge: int) -> None:
    file = image_file(array, longest_edge)
    with Image.open(io.BytesIO(file)) as image:
        small = np.asarray(image).reshape(image.height, image.width, -1).astype(float)
    assert max(small.shape[:2]) == min(max(array.shape[:2]), longest_edge)
    if max(array.shape[:2]) <= longest_edge:
        assert np.array_equal(small, array)
        return
    height, width = small.shape[:2]
    rows, columns = areas(array.shape[0], height), areas(array.shape[1], width)
    exact = np.einsum("hH,wW,HWc->hwc", rows, columns, array.astype(float))
    assert np.abs(small - exact).max() <= 0.5 + 1e-6


def areas(length: int, size: int) -> npt.NDArray[np.float64]:
    """The share of each old pixel in each new one."""
    edges = np.arange(size + 1) * length / size
    begins, ends = edges[:-1, None], edges[1:, None]
    old = np.arange(length)[None]
    return np.clip(np.minimum(ends, old + 1) - np.maximum(begins, old), 0, None) * size / length


def test_files_and_pillows_images_are_scaled_by_pillow() -> None:
    large = np.random.default_rng(1).integers(0, 256, (40, 60, 3), np.uint8)
    expected = np.asarray(Image.fromarray(large).resize((30, 20), Image.Resampling.BOX))
    for value in (Image.fromarray(large), saved(large, "PNG"), base64.b64encode(saved(large, "BMP")).decode()):
        assert np.array_equal(pixels_of(image_file(value, longest_edge=30)), expected)


def test_a_drawing_takes_few_bytes_and_equal_frames_are_equal_files() -> None:
    frame = np.zeros((256, 256, 3), np.uint8)
    frame[64:128, 64:128] = (255, 0, 0)
    assert image_file(frame) == image_file(frame.copy())
    assert len(image_file(frame)) < 1_500


def test_a_message_has_texts_and_images_in_order_and_texts_alone_are_a_text() -> None:
    message = checked(
        Step(user_shows("Where is\x1b[0m it?", RGB, {"type": "image", "bytes": saved(RGB, "JPEG")}, "There?"))
    )
    (shown,) = message["messages"]
    assert [part["type"] for part in shown["content"]] == ["text", "image_url", "image_url", "text"]
    assert shown["content"][0]["text"] == "Where is it?"
    urls = [part["image_url"]["url"] for part in shown["content"][1:3]]
    assert [url.partition(",")[0] for url in urls] == ["data:image/png;base64", "data:image/jpeg;base64"]
    assert np.array_equal(pixels_of(base64.b64decode(urls[0].partition(",")[2])), RGB)
    assert checked(Step(user_shows("a", {"type": "text", "text": "b"})))["messages"][0]["content"] == "a\nb"
    alone = checked(Step([{"role": "tool", "tool_call_id": "c", "content": Image.fromarray(RGB)}]))["messages"][0]
    assert [part["type"] for part in alone["content"]] == ["image_url"]


def test_scaling_without_the_package_that_does_it_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data, rows = saved(RGB, "PNG"), RGB.tolist()
    for missing in ("PIL", "numpy"):
        monkeypatch.setitem(__import__("sys").modules, missing, None)
    with pytest.raises(NotAnImage, match="at most 3 pixels, or Pillow in the workers' Python"):
        image_file(data, longest_edge=3)
    with pytest.raises(NotAnImage, match="at most 3 pixels, or numpy in the workers' Python"):
        image_file(rows, longest_edge=3)
