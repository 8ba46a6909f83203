"""The interface of a family of vision models: plain functions of an image's size, and one of its pixels.

    prompt        "<|vision_start|><|image_pad|><|vision_end|>What is this?"      as the chat template renders it
    expanded      "<|vision_start|><|image_pad|> … x 999 … <|vision_end|>What is this?"     `tokens(768, 1024)` in its place
    inputs        {"pixel_values": (3996, 1176) float32, "image_grid_thw": [[1, 54, 74]]}

Sizes are height, width in pixels of the original image. Promise: tokens, grid and inputs are those of the processor of
transformers. With `by_pillow` the inputs are equal bit for bit to those of its classes that use Pillow
(`Idefics3ImageProcessorPil`); with `shared.images.torch_resizing.by_torch` to those that use torchvision, as engines do, within
float32's rounding.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

RgbPixels = npt.NDArray[np.uint8]  # height x width x 3
Inputs = dict[str, npt.NDArray[Any]]
Resize = Callable[
    [RgbPixels, int, int, int], RgbPixels
]  # image, height, width, Pillow's number of a filter; antialiased, in 8 bits


class Family(Protocol):
    """Functions of a size raise DataError for an image that the model cannot read (an aspect ratio above 200, say)."""

    @property
    def name(self) -> str:
        """The `model_type` of config.json."""
        ...

    @property
    def image_token(self) -> str:
        """The text that a rendered prompt contains once for each image, and that `tokens` replaces."""
        ...

    @property
    def placeholder_id(self) -> int:
        """Id of the tokens whose embeddings are replaced by image features."""
        ...

    @property
    def video_id(self) -> int | None:
        """Id of the placeholders of videos, which are not supported. None: the model has none."""
        ...

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Tokens that stand for images, or around them: a user's or a tool's text must not contain one as a token."""
        ...

    def tokens(self, height: int, width: int) -> str:
        """The text that replaces one `image_token`."""
        ...

    def runs(self, height: int, width: int) -> tuple[int, ...]:
        """Lengths of the runs of consecutive placeholders in `tokens`, in order: one for each tile."""
        ...

    def features(self, height: int, width: int) -> int:
        """Number of placeholders in `tokens`, the sum of `runs`."""
        ...

    def inputs(self, rgb_HW3: RgbPixels, resize: Resize) -> Inputs:
        """What the vision tower reads for one image. The inputs of several images are concatenated along axis 0."""
        ...

    def grid(self, height: int, width: int) -> tuple[int, int, int] | None:
        """Placeholders by time, height and width, for M-RoPE. None: positions are those of text."""
        ...
