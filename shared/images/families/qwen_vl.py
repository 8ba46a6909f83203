"""Qwen2.5-VL and Qwen3-VL: an image keeps its shape, and its number of tokens follows from its size.

    768 x 1024, patches of 14, merged by 2 x 2     ->  756 x 1036 pixels, 54 x 74 patches, 27 x 37 = 999 placeholders

Positions are three-dimensional (M-RoPE), by `grid`. The rules are those of `Qwen2_5_VLProcessor`, `Qwen3VLProcessor` and
`Qwen2VLImageProcessorPil` of transformers 5.23.
"""

import math
from dataclasses import dataclass

import numpy as np

from shared.errors import ConfigError, DataError
from shared.images.families.model_files import ImageSettings, ModelFiles
from shared.images.families.pixels import Pixels
from shared.images.families.protocol import Inputs, RgbPixels
from shared.images.families.sizes import require_pixels

PATCH_SIZES = {"qwen2_5_vl": 14, "qwen3_vl": 16}  # of the vision tower, where config.json has none
MAX_ASPECT_RATIO = 200
_IMAGE, _VIDEO = "<|image_pad|>", "<|video_pad|>"
_AROUND = ("<|vision_start|>", "<|vision_end|>")
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_BICUBIC = 3


@dataclass(frozen=True, eq=False)
class GridFamily:
    """`patch`: edge of a patch in pixels. `merge`: patches along each edge of a placeholder. `times`: frames of a patch, all of
    them the image itself. `min_pixels`, `max_pixels`: of the resized image."""

    name: str
    placeholder_id: int
    video_id: int | None
    control_tokens: tuple[str, ...]
    patch: int
    merge: int
    times: int
    min_pixels: int
    max_pixels: int
    pixels: Pixels
    image_token: str = _IMAGE

    @classmethod
    def read(cls, files: ModelFiles) -> "GridFamily":
        """Raises ConfigError."""
        name = str(files.config["model_type"])
        files.processor_settings().finish()
        settings = files.image_settings(("Qwen2VLImageProcessor",))
        min_pixels, max_pixels = _pixel_range(settings)
        patch, merge = settings.count("patch_size", 14), settings.count("merge_size", 2)
        times = settings.count("temporal_patch_size", 2)
        if not settings.flag("do_resize", True):
            raise settings.wrong("do_resize", False, "true: patches need edges that are multiples of their size")
        pixels = Pixels.read(settings, _BICUBIC, _CLIP_MEAN, _CLIP_STD)
        settings.finish()
        tower = (
            ("patch_size", patch, PATCH_SIZES[name]),
            ("spatial_merge_size", merge, 2),
            ("temporal_patch_size", times, 2),
        )
        for key, value, default in tower:
            of_model = files.config["vision_config"].get(key, default)
            if of_model != value:
                raise ConfigError(
                    f"{settings.file}: {key.removeprefix('spatial_')} is {value}, and {key} of the model's vision_config "
                    f"is {of_model}; expected the same"
                )
        files.require_names({"image_token": _IMAGE, "video_token": _VIDEO})
        return cls(
            name=name,
            placeholder_id=files.token_id(_IMAGE, "image_token_id"),
            video_id=files.added_tokens.get(_VIDEO),
            control_tokens=tuple(token for token in (_IMAGE, _VIDEO, *_AROUND) if token in files.added_tokens),
            patch=patch,
            merge=merge,
            times=times,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            pixels=pixels,
        )

    def tokens(self, height: int, width: int) -> str:
        return _IMAGE * self.features(height, width)

    def runs(self, height: int, width: int) -> tuple[int, ...]:
        return (self.features(height, width),)

    def features(self, height: int, width: int) -> int:
        return math.prod(self.grid(height, width))

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        height, width = self.resized_size(height, width)
        edge = self.patch * self.merge
        return 1, height // edge, width // edge

    def inputs(self, rgb_HW3: RgbPixels) -> Inputs:
        """pixel_values: patches x (3 x times x patch x patch), the patches of one placeholder next to each other;
        image_grid_thw: 1 x 3, patches before merging."""
        image_HW3 = self.pixels.resized(rgb_HW3, *self.resized_size(*rgb_HW3.shape[:2]))
        rows, columns = image_HW3.shape[0] // self.patch, image_HW3.shape[1] // self.patch
        blocks = image_HW3.reshape(
            rows // self.merge, self.merge, self.patch, columns // self.merge, self.merge, self.patch, 3
        )
        patches_NCPP = blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, 3, self.patch, self.patch)
        values_NCTPP = np.empty((rows * columns, 3, self.times, self.patch, self.patch), dtype=np.float32)
        for channel in range(3):
            values_NCTPP[:, channel] = self.pixels.floats(channel, patches_NCPP[:, channel])[:, None]
        return {
            "pixel_values": values_NCTPP.reshape(rows * columns, -1),
            "image_grid_thw": np.array([[1, rows, columns]], dtype=np.int64),
        }

    def resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Multiples of an edge of a placeholder, with a product from `min_pixels` to about `max_pixels`. Raises DataError."""
        require_pixels(height, width)
        if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
            raise DataError(
                f"an image of {height} x {width} pixels (height x width) has the aspect ratio "
                f"{max(height, width) / min(height, width):g}; expected at most {MAX_ASPECT_RATIO}"
            )
        edge = self.patch * self.merge
        rows, columns = round(height / edge), round(width / edge)
        if rows * columns * edge**2 > self.max_pixels:
            shrink = math.sqrt((height * width) / self.max_pixels)
            rows = max(1, math.floor(height / shrink / edge))
            columns = max(1, math.floor(width / shrink / edge))
        elif rows * columns * edge**2 < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * grow / edge), math.ceil(width * grow / edge)
        return rows * edge, columns * edge


def _pixel_range(settings: ImageSettings) -> tuple[int, int]:
    """Least and most pixels. `size`, whose "edges" are numbers of pixels here, gives those that `min_pixels` and `max_pixels`
    do not."""
    size = settings.take("size", {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280})
    merged = dict(size) if isinstance(size, dict) else {}
    for key, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        if settings.take(key, None) is not None:
            merged[edge] = settings.count(key, 1)
            merged.pop(key, None)
    edges = settings.edges("size", merged or size, ("shortest_edge", "longest_edge"))
    return edges["shortest_edge"], edges["longest_edge"]
