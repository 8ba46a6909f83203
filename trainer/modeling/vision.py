"""The vision tower of a vision-language model: its features, once per distinct image, in the places of an image's tokens.

    pixels of each distinct image ─▶ tower ▸ projector ─▶ features ─▶ gathered by token ─▶ the model scatters them into its
                                                                      embeddings (and, deepstack, into its first layers)

The model itself scatters: transformers' `mm_encoder_outputs` takes features that are computed already. For a row of one sequence
that the model computes in its own way, it gets the pixels of the images instead, in the order in which they stand.

    suffix _P  placeholder of the row      _FD  feature of the row's distinct images
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from shared.errors import DataError
from shared.images.families.idefics3 import TILED
from trainer.trees.images import Grid, RowImages

GRIDDED = ("qwen2_5_vl", "qwen3_vl")  # images of any size, positions of three parts (M-RoPE)
GRID = "image_grid_thw"
CACHE_BYTES = 1 << 28  # of the features of a frozen tower


def has_vision(config: PretrainedConfig) -> bool:
    """Whether the model is computed with images."""
    return config.model_type in (*TILED, *GRIDDED)


def vision_parts(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The vision tower and the projector, by name; empty for a text-only model."""
    config = getattr(model, "config", None)
    if config is None or not has_vision(config):
        return {}
    language = model.get_decoder()
    prefix = model.base_model_prefix
    return {f"{prefix}.{name}": part for name, part in model.base_model.named_children() if part is not language}


def language_layers(model: PreTrainedModel, names: Sequence[str]) -> tuple[str, ...]:
    """Of these classes of layers those outside of the vision tower, which is sharded with the rest of the model: a process whose
    rows have no image does not call it.
    """
    inside = {type(module).__name__ for part in vision_parts(model).values() for module in part.modules()}
    return tuple(name for name in names if name not in inside)


def attention_of_parts(model: PreTrainedModel, name: str) -> str | dict[str, str]:
    """For `set_attn_implementation`: the language model's `name`; the tower, which has no tree, keeps transformers' own."""
    if not has_vision(model.config):
        return name
    return {"": name, "text_config": name, "vision_config": "eager" if name == "eager" else "sdpa"}


class VisionTower:
    """Computes the features of a row's images. Those of a frozen tower are kept for later rows and steps, within CACHE_BYTES."""

    def __init__(self, causal_lm: PreTrainedModel) -> None:
        self._causal_lm = causal_lm
        self._parts = tuple(vision_parts(causal_lm).values())
        self._kept: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()

    def arguments(self, images: RowImages, ids_N: Tensor, *, trees: bool) -> dict[str, Any]:
        """The model's arguments for a row with images. Raises DataError for images without pixels."""
        if len(images.inputs) != len(images.digests):
            raise DataError(
                f"{len(images.digests)} images in a row, pixels of {len(images.inputs)}; expected those of each: this source of "
                "training data has no images yet"
            )
        if not trees:
            given = batched([images.inputs[image] for image in images.in_order()])
            is_feature_N = torch.zeros_like(ids_N, dtype=torch.int32)
            is_feature_N[images.node_P] = 1
            return {**given, **({"mm_token_type_ids": is_feature_N[None]} if GRID in given else {})}
        features = self._features(images)
        counts = torch.tensor([len(of_image[0]) for of_image in features], device=images.image_P.device)
        place_P = (torch.cumsum(counts, 0) - counts)[images.image_P] + images.feature_P
        first_FD, *deep = (torch.cat(level)[place_P] for level in zip(*features, strict=True))
        encoded = SimpleNamespace(pooler_output=[first_FD], deepstack_features=[[level_FD] for level_FD in deep])
        positions = {} if images.mrope_3N is None else {"position_ids": images.mrope_3N[:, None]}
        return {"mm_encoder_outputs": {"image": encoded}, **positions}

    def unused(self) -> Tensor | None:
        """0, with a gradient of 0 for each trained parameter of the tower: every process must have one for each of them."""
        trained = self._trained()
        return torch.stack([parameter.flatten()[:1].sum() * 0.0 for parameter in trained]).sum() if trained else None

    def _trained(self) -> list[nn.Parameter]:
        """As they are now: sharding replaces parameters."""
        return [p for part in self._parts for p in part.parameters() if p.requires_grad]

    def _features(self, images: RowImages) -> list[tuple[Tensor, ...]]:
        """Of each image: its features, and those for the first layers where the model has such."""
        if self._trained():
            return self._computed(images.inputs)
        missing = [place for place, digest in enumerate(images.digests) if digest not in self._kept]
        if missing:
            with torch.no_grad():
                computed = self._computed([images.inputs[place] for place in missing])
            self._kept |= {images.digests[place]: of for place, of in zip(missing, computed, strict=True)}
        features = [self._kept[digest] for digest in images.digests]
        for digest in images.digests:
            self._kept.move_to_end(digest)
        while sum(t.nbytes for of in self._kept.values() for t in of) > CACHE_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return features

    def _computed(self, inputs: Sequence[Mapping[str, Tensor]]) -> list[tuple[Tensor, ...]]:
        model: Any = self._causal_lm
        same = {name: {tuple(of[name].shape[1:]) for of in inputs} for name in inputs[0]}
        if GRID not in inputs[0] and any(len(shapes) > 1 for shapes in same.values()):  # tiles of several sizes
            return [features for of in inputs for features in self._computed([of])]
        counts = [self._count(of) for of in inputs]
        output = model.get_image_features(**batched(inputs), return_dict=True)
        levels = [torch.cat(list(output.pooler_output))]
        levels += [torch.cat(list(level)) for level in getattr(output, "deepstack_features", None) or ()]
        rows = len(levels[0]) // max(sum(counts), 1)  # features of a tile; 1 where images have a grid
        return list(zip(*(level.split([rows * count for count in counts]) for level in levels), strict=True))

    def _count(self, of_image: Mapping[str, Tensor]) -> int:
        """Features of an image with a grid, or its tiles."""
        if GRID in of_image:
            merged: int = self._causal_lm.config.vision_config.spatial_merge_size
            return int(of_image[GRID].prod()) // merged**2
        return len(of_image["pixel_values"])


def batched(inputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The inputs of several images as the model's own forward takes those of one sequence.

    Tiles: pixel_values [tiles, 3, H, W] of each become [1, tiles, 3, H, W]. With a grid: patches one after the other.
    """
    whole = {name: torch.cat([of[name] for of in inputs]) for name in inputs[0]}
    return whole if GRID in whole else {name: tensor[None] for name, tensor in whole.items()}


class VisionSample:
    """Random images of the smallest size, for the measurement of the model (trainer/modeling/probe.py)."""

    def __init__(self, config: Any, seed: int, count: int) -> None:
        random = np.random.default_rng([seed, 1])
        self.placeholder: int = config.image_token_id
        vision = config.vision_config
        self.grid: Grid | None = None
        shape: tuple[int, ...]
        more: dict[str, Tensor] = {}
        if config.model_type in TILED:
            self.num_features = int((vision.image_size // vision.patch_size) ** 2 / config.scale_factor**2)
            shape = (1, vision.num_channels, vision.image_size, vision.image_size)
        else:
            merged, high, wide = vision.spatial_merge_size, 2, 3
            self.num_features, self.grid = high * wide, (1, high, wide)
            patch = vision.temporal_patch_size * vision.patch_size**2 * int(getattr(vision, "in_channels", 3))
            shape = (high * wide * merged**2, patch)
            more = {GRID: torch.tensor([[1, high * merged, wide * merged]])}
        self.digests = tuple(f"probe {seed}, image {number}" for number in range(count))  # kept features go by them
        self.inputs = [
            {"pixel_values": torch.from_numpy(random.standard_normal(shape).astype(np.float32)), **more}
            for _ in range(count)
        ]
