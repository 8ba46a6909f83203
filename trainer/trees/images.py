"""Images in trees and rows: which token is which feature of which image, and the positions that follow from it.

TreeImages   of a tree, or of a piece of one (numpy)      ─ pack ─▶      RowImages   of a row (tensors), with what the tower reads

    suffix _N  token      _P  placeholder of the row      _3N  (time, height, width) of each token
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.tokens.image_span import distinct_images, placeholders
from shared.tokens.record_tree import RecordTree
from shared.tokens.trie import Int64, runs

Grid = tuple[int, int, int]
Pixels = Callable[[str], Mapping[str, npt.NDArray[Any]]]  # from a digest to what the vision tower reads


@dataclass(frozen=True, slots=True)
class TreeImages:
    """`image_N`: which of `digests` the token is a feature of, -1: none. `feature_N`: which of its features.

    `mrope_3N`: positions of models whose images have a grid, else None.
    """

    digests: tuple[str, ...]
    image_N: Int64
    feature_N: Int64
    mrope_3N: Int64 | None

    def take(self, nodes: Int64) -> "TreeImages":
        """Of these nodes alone."""
        mrope_3N = None if self.mrope_3N is None else self.mrope_3N[:, nodes]
        return TreeImages(self.digests, self.image_N[nodes], self.feature_N[nodes], mrope_3N)


@dataclass(frozen=True, slots=True)
class PixelsOnDemand(Sequence[Mapping[str, Tensor]]):
    """What the vision tower reads of each of `digests`, made when it is read: for a row whose features are known, none is."""

    digests: tuple[str, ...]
    pixels: Pixels
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.digests)

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Tensor]: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Tensor]]: ...
    def __getitem__(self, place: int | slice) -> Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]:
        if isinstance(place, slice):
            return dataclasses.replace(self, digests=self.digests[place])
        arrays = self.pixels(self.digests[place])
        return {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items()}


@dataclass(frozen=True, slots=True)
class RowImages:
    """`inputs`: of each of `digests` what the model's vision tower reads; empty until `with_pixels`."""

    digests: tuple[str, ...]
    node_P: Tensor
    image_P: Tensor
    feature_P: Tensor
    mrope_3N: Tensor | None
    inputs: Sequence[Mapping[str, Tensor]] = ()

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "RowImages":
        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        inputs: Sequence[Mapping[str, Tensor]]
        if isinstance(self.inputs, PixelsOnDemand):
            inputs = dataclasses.replace(self.inputs, device=device)
        else:
            inputs = [{name: moved(tensor) for name, tensor in of.items()} for of in self.inputs]
        return RowImages(
            self.digests,
            moved(self.node_P),
            moved(self.image_P),
            moved(self.feature_P),
            None if self.mrope_3N is None else moved(self.mrope_3N),
            inputs,
        )

    def padded(self, extra: int) -> "RowImages":
        """With `extra` tokens that continue the last one."""
        if self.mrope_3N is None:
            return self
        following = torch.arange(1, extra + 1, device=self.mrope_3N.device)
        return dataclasses.replace(
            self, mrope_3N=torch.cat([self.mrope_3N, self.mrope_3N[:, -1:].amax() + following.expand(3, -1)], 1)
        )

    def in_order(self) -> list[int]:
        """The image of each place in which one begins, in the order of the row: one that stands twice is there twice."""
        images: list[int] = self.image_P[self.feature_P == 0].tolist()
        return images


def images_of_tree(
    records: Sequence[RecordTree], places: Sequence[tuple[int, Int64, Int64]], parents_N: Int64
) -> TreeImages | None:
    """Of a tree whose nodes hold tokens of records: `places` lists (record, nodes, its tokens there). None: no image."""
    present = sorted({t for t, _, _ in places if records[t].images})
    if not present:
        return None
    numbers = distinct_images([records[t] for t in present])
    of_record = {t: _of_record(records[t], numbers) for t in present}
    image_N, feature_N = (np.full(len(parents_N), -1, dtype=np.int64) for _ in range(2))
    for t, nodes, tokens in places:
        if t in of_record:
            image_N[nodes], feature_N[nodes] = (of_token[tokens] for of_token in of_record[t])
    grids = [grid for _, grid in numbers]
    mrope_3N = mrope_positions(parents_N, image_N, feature_N, grids) if any(grids) else None
    return TreeImages(tuple(digest for digest, _ in numbers), image_N, feature_N, mrope_3N)


def _of_record(record: RecordTree, numbers: Mapping[tuple[str, Grid | None], int]) -> tuple[Int64, Int64]:
    image_N, feature_N = (np.full(record.num_tokens, -1, dtype=np.int64) for _ in range(2))
    for span in record.images:
        nodes = placeholders(record, span)
        image_N[nodes], feature_N[nodes] = numbers[span.sha256, span.grid], np.arange(span.count)
    return image_N, feature_N


def mrope_positions(parents_N: Int64, image_N: Int64, feature_N: Int64, grids: Sequence[Grid | None]) -> Int64:
    """Positions [3, N] of M-RoPE (Qwen2-VL, arXiv 2409.12191, section 2.1), a function of each token's path alone.

    A text token is one behind what is before it, in all three parts. An image's features stand at the first position plus their
    place in its grid; what follows it stands max(h, w) behind its first position.
    """
    step_N = np.where(image_N < 0, 1, 0)
    place_3N = np.zeros((3, len(parents_N)), dtype=np.int64)
    for image, grid in enumerate(grids):
        assert grid is not None, "a model's images have grids or none has"
        nodes = np.flatnonzero(image_N == image)
        place_3N[:, nodes] = np.stack(np.unravel_index(feature_N[nodes], grid))
        step_N[nodes[feature_N[nodes] == int(np.prod(grid)) - 1]] = max(grid[1:])
    before_N = np.zeros(len(parents_N), dtype=np.int64)
    for start, stop in runs(parents_N.astype(np.int32)):
        parent = int(parents_N[start])
        above = 0 if parent < 0 else int(before_N[parent] + step_N[parent])
        before_N[start:stop] = above + np.cumsum(step_N[start:stop]) - step_N[start:stop]
    return before_N + place_3N


def images_of_row(parts: Sequence[tuple[TreeImages | None, Int64]]) -> RowImages | None:
    """Of trees one after the other, each with its tokens' depths; None: no token is a feature."""
    if not any(images is not None and (images.image_N >= 0).any() for images, _ in parts):
        return None
    numbers: dict[str, int] = {}
    image_N: list[Int64] = []
    feature_N: list[Int64] = []
    for images, depth_N in parts:
        if images is None:
            image_N.append(np.full(len(depth_N), -1, dtype=np.int64))
            feature_N.append(image_N[-1])
            continue
        used = np.unique(images.image_N[images.image_N >= 0]).tolist()
        number_of = np.full(len(images.digests) + 1, -1, dtype=np.int64)  # -1 reads the last one
        number_of[used] = [numbers.setdefault(images.digests[image], len(numbers)) for image in used]
        image_N.append(number_of[images.image_N])
        feature_N.append(images.feature_N)
    whole_N = np.concatenate(image_N)
    node_P = np.flatnonzero(whole_N >= 0)
    mrope_3N = None
    if any(images is not None and images.mrope_3N is not None for images, _ in parts):
        plain = [np.broadcast_to(depth_N, (3, len(depth_N))) for _, depth_N in parts]
        mrope_3N = np.concatenate(
            [
                of_depth if images is None or images.mrope_3N is None else images.mrope_3N
                for (images, _), of_depth in zip(parts, plain, strict=True)
            ],
            axis=1,
        )
    return RowImages(
        tuple(numbers),
        torch.from_numpy(node_P),
        torch.from_numpy(whole_N[node_P]),
        torch.from_numpy(np.concatenate(feature_N)[node_P]),
        None if mrope_3N is None else torch.from_numpy(np.ascontiguousarray(mrope_3N)),
    )


def with_pixels(images: RowImages, pixels: Pixels, *, on_demand: bool = False) -> RowImages:
    """With what the model's vision tower reads of each image. `on_demand`: `pixels` can be asked as long as there is the row."""
    inputs = PixelsOnDemand(images.digests, pixels)
    return dataclasses.replace(images, inputs=inputs if on_demand else tuple(inputs))
