"""Idefics3 and SmolVLM: an image is resized to a multiple of the tile's edge, cut into tiles, and shown once more as a whole.

    768 x 1024, tiles of 512, longest edge 2048            a tile's features: (512 / 16)^2 patches / 4^2 = 64 placeholders

    <fake_token_around_image><row_1_col_1><image> x 64 … <row_1_col_4><image> x 64 \\n
    <fake_token_around_image><row_2_col_1> …                                     3 rows of 4 tiles
    \\n<fake_token_around_image><global-img><image> x 64<fake_token_around_image>

Positions are those of text. The rules are those of `Idefics3Processor` and `Idefics3ImageProcessorPil` of transformers 5.23.
"""

import math
from dataclasses import dataclass

import numpy as np

from shared.errors import ConfigError
from shared.images.families.model_files import ModelFiles, is_count
from shared.images.families.pixels import Pixels
from shared.images.families.protocol import Inputs, Resize, RgbPixels
from shared.images.families.sizes import require_pixels

TILED = ("idefics3", "smolvlm")
_IMAGE, _AROUND, _GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
_MARKS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
_LARGEST = 4096  # pixels: an edge after the first resizing
_HALF = (0.5, 0.5, 0.5)
_LANCZOS = 1


@dataclass(frozen=True, eq=False)
class TiledFamily:
    """`tile`: edge in pixels. `tile_features`: placeholders of a tile. `first_size`: longest edge of the first resizing, or
    its height and width, or None: the image is not resized first."""

    name: str
    placeholder_id: int
    control_tokens: tuple[str, ...]
    tile: int
    tile_features: int
    first_size: int | tuple[int, int] | None
    splits: bool
    masks: bool
    pixels: Pixels
    image_token: str = _IMAGE
    video_id: int | None = None

    @classmethod
    def read(cls, files: ModelFiles) -> "TiledFamily":
        """Raises ConfigError."""
        processor = files.processor_settings()
        tile_features = processor.count("image_seq_len", 169)
        processor.finish()
        settings = files.image_settings(("Idefics3ImageProcessor", "SmolVLMImageProcessor"))
        size = settings.take("size", {"longest_edge": 4 * 364})
        keys = (
            ("longest_edge",)
            if isinstance(size, dict) and size.get("longest_edge") is not None
            else ("height", "width")
        )
        edges = settings.edges("size", size, keys)
        resizes = settings.flag("do_resize", True)
        largest = settings.take("max_image_size", {"longest_edge": 364})
        tile = settings.edges("max_image_size", largest, ("longest_edge",))["longest_edge"]
        splits, masks = settings.flag("do_image_splitting", True), settings.flag("do_pad", True)
        pixels = Pixels.read(settings, _LANCZOS, _HALF, _HALF)
        settings.finish()
        if (pixels.table_C256 == 0).any(axis=1).all():
            raise ConfigError(
                f"{settings.file}: do_rescale, do_normalize and image_mean map a pixel value to 0 in all channels; "
                "expected others: the model leaves out a tile whose numbers are all 0"
            )
        _require_features(files, tile, tile_features)
        files.require_names({"image_token": _IMAGE, "fake_image_token": _AROUND, "global_image_token": _GLOBAL})
        return cls(
            name=str(files.config["model_type"]),
            placeholder_id=files.token_id(_IMAGE, "image_token_id"),
            control_tokens=tuple(token for token in (_IMAGE, _AROUND, _GLOBAL, *_MARKS) if token in files.added_tokens),
            tile=tile,
            tile_features=tile_features,
            first_size=None if not resizes else edges.get("longest_edge") or (edges["height"], edges["width"]),
            splits=splits,
            masks=masks,
            pixels=pixels,
        )

    def tokens(self, height: int, width: int) -> str:
        rows, columns = self.tiles(height, width)
        placeholders = _IMAGE * self.tile_features
        whole = f"{_AROUND}{_GLOBAL}{placeholders}{_AROUND}"
        if rows * columns == 0:
            return whole
        lines = (
            "".join(f"{_AROUND}<row_{row}_col_{column}>{placeholders}" for column in range(1, columns + 1)) + "\n"
            for row in range(1, rows + 1)
        )
        return "".join(lines) + "\n" + whole

    def runs(self, height: int, width: int) -> tuple[int, ...]:
        rows, columns = self.tiles(height, width)
        return (self.tile_features,) * (rows * columns + 1)

    def features(self, height: int, width: int) -> int:
        return sum(self.runs(height, width))

    def grid(self, height: int, width: int) -> None:
        return None

    def tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles; (0, 0): the whole image alone."""
        split = self._split_size(*self._first_size(height, width))
        return (0, 0) if split == (self.tile, self.tile) else (split[0] // self.tile, split[1] // self.tile)

    def inputs(self, rgb_HW3: RgbPixels, resize: Resize) -> Inputs:
        """pixel_values: tiles x 3 x edge x edge, the whole image last; pixel_attention_mask: tiles x edge x edge, all 1."""
        image_HW3 = self.pixels.resized(rgb_HW3, *self._first_size(*rgb_HW3.shape[:2]), resize)
        image_HW3 = self.pixels.resized(image_HW3, *self._split_size(*image_HW3.shape[:2]), resize)
        edge = self.tile
        rows, columns = image_HW3.shape[0] // edge, image_HW3.shape[1] // edge
        tiles_THW3 = image_HW3.reshape(rows, edge, columns, edge, 3).swapaxes(1, 2).reshape(-1, edge, edge, 3)
        if len(tiles_THW3) > 1:
            tiles_THW3 = np.concatenate([tiles_THW3, self.pixels.resized(image_HW3, edge, edge, resize)[None]])
        pixel_values = np.stack([self.pixels.floats(channel, tiles_THW3[..., channel]) for channel in range(3)], axis=1)
        inputs: Inputs = {"pixel_values": pixel_values}
        if self.masks:
            inputs["pixel_attention_mask"] = np.ones((len(tiles_THW3), edge, edge), dtype=np.int64)
        return inputs

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        """The longest edge becomes `first_size`, the other an even number."""
        require_pixels(height, width)
        if self.first_size is None:
            return height, width
        if isinstance(self.first_size, tuple):
            return self.first_size
        aspect, longest = width / height, self.first_size
        if width >= height:
            width, height = longest, _even(int(longest / aspect))
        else:
            height, width = longest, _even(int(longest * aspect))
        height, width = max(height, 1), max(width, 1)
        aspect = width / height
        if width >= height and width > _LARGEST:
            width, height = _LARGEST, int(_LARGEST / aspect)
        elif height > width and height > _LARGEST:
            height, width = _LARGEST, int(_LARGEST * aspect)
        return max(height, 1), max(width, 1)

    def _split_size(self, height: int, width: int) -> tuple[int, int]:
        """Multiples of the tile's edge, the longer edge rounded first."""
        if not self.splits:
            return self.tile, self.tile
        aspect = width / height
        if width >= height:
            width = self._whole_tiles(width)
            return self._whole_tiles(int(width / aspect)), width
        height = self._whole_tiles(height)
        return height, self._whole_tiles(int(height * aspect))

    def _whole_tiles(self, pixels: int) -> int:
        return max(math.ceil(pixels / self.tile), 1) * self.tile


def _even(pixels: int) -> int:
    return pixels + pixels % 2


def _require_features(files: ModelFiles, tile: int, tile_features: int) -> None:
    """The model makes ((edge / patch) / scale)^2 features of a tile. Raises ConfigError for another `image_seq_len`."""
    vision = files.config["vision_config"]
    patch, scale = vision.get("patch_size", 32), files.config.get("scale_factor", 2)
    if not (is_count(patch) and is_count(scale)):
        raise ConfigError(
            f"{files.folder}/config.json: patch_size is {patch!r} and scale_factor {scale!r}; "
            "expected whole numbers of at least 1"
        )
    features = (tile // patch) ** 2 // scale**2
    if features != tile_features:
        raise ConfigError(
            f"{files.folder}: image_seq_len is {tile_features} (169 where processor_config.json has none); expected {features}: "
            f"({tile} pixels of max_image_size / {patch} of patch_size)^2 / {scale}^2 of scale_factor"
        )
