"""The vision tower: features of images, computed once for each image and version of the weights, in the places of a plan's rows.

The scheduler's thread alone computes. An image that a cached prefix has is not computed again.

    suffix _PD  features of placeholders
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from sampler.engine.local.attention import Piece, Plan, ShownFeatures
from sampler.engine.local.image_reader import ImageReader
from sampler.engine.local.prompt_images import KnownImage, PromptImages
from shared.bounded_cache import BoundedCache

FEATURE_BYTES = 1 << 28  # of the features of images in the cache

Levels = tuple[Tensor, ...]  # an image's features, and those for the first layers where the model has such (deepstack)


class Vision:
    def __init__(self, model: PreTrainedModel, reader: ImageReader) -> None:
        self._model, self._reader = model, reader
        self._cached = BoundedCache[Levels](FEATURE_BYTES, lambda levels: sum(level.nbytes for level in levels))
        reader.has_features = lambda image: image.sha256 in self._cached

    def forget(self) -> None:
        """The weights are others now."""
        self._cached.clear()

    def of_tokens(self, shown: PromptImages, start: int, stop: int) -> dict[int, Levels]:
        """By image: the features of those with a placeholder among tokens [start, stop). Raises DataError, TimeoutError or
        MemoryError for an image that has to be decoded again, and cannot be."""
        needed = np.unique(shown.image_P[shown.placeholders(start, stop)]).tolist()
        return {image: self._features(shown.images[image], shown.files[image]) for image in needed}

    def _features(self, image: KnownImage, data: bytes) -> Levels:
        levels = self._cached.get(image.sha256)
        if levels is None:
            with image.lock:
                inputs = image.inputs or self._reader.read_file(image, data, f"image {image.sha256[:12]}")
                image.inputs = None
            self._cached.put(image.sha256, levels := features_of(self._model, inputs))
        return levels

    @staticmethod
    def show(plan: Plan, parts: Sequence[tuple[Piece, PromptImages, Mapping[int, Levels]]]) -> None:
        """Put the images of some pieces of a prefill into its plan: features in place of embeddings, and positions."""
        rows: list[int] = []
        features: list[Levels] = []
        for piece, shown, of_image in parts:
            stop = piece.past + piece.end - piece.start
            if shown.rotary_3N is not None:
                if plan.rotary is None:
                    plan.rotary = plan.position_N.expand(3, -1).clone()
                plan.rotary[:, piece.start : piece.end] = torch.from_numpy(shown.positions(piece.past, stop))
            chosen = shown.placeholders(piece.past, stop)
            rows += (shown.token_P[chosen] - piece.past + piece.start).tolist()
            image_P, feature_P = shown.image_P[chosen], shown.feature_P[chosen]
            for image, levels in of_image.items():  # in order: so are the placeholders of a prompt
                taken = torch.from_numpy(feature_P[image_P == image])
                features.append(tuple(level[taken] for level in levels))
        if rows:
            plan.shown = ShownFeatures(torch.tensor(rows), [torch.cat(level) for level in zip(*features, strict=True)])


def features_of(model: Any, inputs: Mapping[str, Tensor]) -> Levels:
    """Of one image, [features, hidden] each: [0] of its placeholders, the others for the first layers."""
    output = model.get_image_features(**arguments_of(inputs), return_dict=True)
    levels = [torch.cat(list(output.pooler_output))]
    levels += [torch.cat(list(level)) for level in getattr(output, "deepstack_features", None) or ()]
    return tuple(level.flatten(0, -2) for level in levels)


def arguments_of(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As the model takes the images of one prompt: tiles as a batch of one, patches with a grid as they are."""
    return dict(inputs) if "image_grid_thw" in inputs else {name: tensor[None] for name, tensor in inputs.items()}
