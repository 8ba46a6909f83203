"""The probe on which ways are measured: a small tree, and the same tokens as sequences.

    near    trunk ──┬── a ──┬── a1        Leaves of different length, so that what one branch does to another shows: a state that
                    │       └── a2        is carried on, a position that counts tokens of the row, a mask that is not used, expert
                    └── b ───── b1        capacity. The trunk is longer than windows and chunks that the config names.
    far     a chain across each length at which the rotary positions change (dynamic and longrope: the frequencies of a whole row
            follow from its largest position). Its positions begin just below that length, so that few tokens reach it

Entries are all tokens but roots, in the order of the row. For a vision-language model the trunk, a and b each begin with an
image, b with the trunk's.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainer.modeling.forward_ways import LENGTH_WORDS, MEASURED_DEPTH
from trainer.modeling.vision import VisionSample, has_vision
from trainer.trees.images import RowImages, TreeImages, images_of_row, mrope_positions
from trainer.trees.packing import Row

TRUNK = 24
BRANCHES = ((11, (6, 14)), (17, (5,)))  # tokens of a, b; of a1, a2 and b1
FAR_BEFORE, FAR_AFTER = 5, 6
NUM_IMAGES = 2
FAR_SETTING = "original_max_position_embeddings"

Segments = list[tuple[int, int]]  # (parent segment or -1, tokens), in pre-order


@dataclass(frozen=True, slots=True)
class Probe:
    """`tree`: the near tree and the far chains, in this order; `near` and `far`: the same as sequences."""

    tree: Row
    near: tuple[Row, ...]
    far: tuple[Row, ...]

    @property
    def coefficients_E(self) -> Tensor:
        """Weights of the log-probs for the gradient: of both signs, equal for the tree and its sequences."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(self.tree.num_entries, generator=generator)

    @property
    def num_near(self) -> int:
        """Entries of the near tree, which come first."""
        return sum(row.num_entries for row in self.near)


def make_probe(model: PreTrainedModel, seed: int) -> Probe:
    """A probe of random ordinary tokens."""
    config = model.config.get_text_config()
    chains = [length - FAR_BEFORE for length in _far_lengths(config)]
    sample = VisionSample(model.config, seed, NUM_IMAGES) if has_vision(model.config) else None
    segments, starts = _near_segments(_trunk(config), 0 if sample is None else sample.num_features), [0]
    for start in chains:
        starts.append(start)
        segments.append((-1, FAR_BEFORE + FAR_AFTER))
    parents_N = _parents(segments)
    usable = _usable_ids(model)
    ids_N = usable[np.random.default_rng(seed).integers(0, len(usable), len(parents_N))]
    positions_N = np.zeros_like(parents_N)
    roots = iter(starts)
    for node, parent in enumerate(parents_N.tolist()):
        positions_N[node] = next(roots) if parent < 0 else positions_N[parent] + 1
    images = None if sample is None else _images(sample, segments, ids_N, parents_N, positions_N, sum(starts[1:]) > 0)
    tree = _row(
        ids_N, parents_N, positions_N, np.flatnonzero(parents_N >= 0), _with_inputs(images, positions_N, sample)
    )
    sequences = list(_sequences(tree, images, sample))
    return Probe(tree, tuple(sequences[: -len(chains) or None]), tuple(sequences[len(sequences) - len(chains) :]))


def _trunk(config: Any) -> int:
    """A length that puts every leaf beyond the measurable windows and chunks."""
    lengths = [
        int(value)
        for name, value in vars(config).items()
        if isinstance(value, int) and value <= MEASURED_DEPTH and any(word in name for word in LENGTH_WORDS)
    ]
    longest = getattr(config, "max_position_embeddings", None) or MEASURED_DEPTH
    room = max(1, min(MEASURED_DEPTH, longest) - max(a + max(below) for a, below in BRANCHES))
    return min(max([TRUNK, *lengths]), room)


def _far_lengths(config: Any) -> list[int]:
    """Positions at which the rotary embedding changes, from the config."""
    parameters = getattr(config, "rope_parameters", None) or {}
    of_layers = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    lengths = {int(of[FAR_SETTING]) for of in of_layers if of.get(FAR_SETTING)}
    if any("dynamic" in str(of.get("rope_type")) for of in of_layers):
        lengths.add(int(config.max_position_embeddings))
    return sorted(length for length in lengths if length > FAR_BEFORE)


def _usable_ids(model: PreTrainedModel) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token ids except padding, images and other special tokens of the config."""
    embedding: Any = model.get_input_embeddings()
    named = {
        value
        for config in (model.config, model.config.get_text_config())
        for name, value in vars(config).items()
        if isinstance(value, int) and name.endswith(("_token_id", "_token_index"))
    }
    count = min(int(embedding.weight.shape[0]), int(getattr(model.config.get_text_config(), "vocab_size", 1 << 62)))
    return np.setdiff1d(np.arange(count), np.array(sorted(named), dtype=np.int64))


def _near_segments(trunk: int, features: int) -> Segments:
    """`features`: of the image in the trunk and in each branch of it."""
    segments: Segments = [(-1, trunk + features)]
    for length, leaves in BRANCHES:
        segments.append((0, length + features))
        branch = len(segments) - 1
        segments += [(branch, leaf) for leaf in leaves]
    return segments


def _parents(segments: Segments) -> np.ndarray[Any, np.dtype[np.int64]]:
    parents: list[int] = []
    last: list[int] = []
    for parent, length in segments:
        above = -1 if parent < 0 else last[parent]
        for _ in range(length):
            parents.append(above)
            above = len(parents) - 1
        last.append(above)
    return np.array(parents)


def _images(
    sample: VisionSample, segments: Segments, ids_N: Any, parents_N: Any, positions_N: Any, far: bool
) -> TreeImages:
    """Writes the images' placeholders into `ids_N`. The chains of `far` have none, and keep their positions."""
    image_N, feature_N = (np.full(len(ids_N), -1, dtype=np.int64) for _ in range(2))
    number, start = 0, 0
    for parent, length in segments:
        if parent == 0 or start == 0:
            here = slice(start + 1, start + 1 + sample.num_features)
            ids_N[here], image_N[here] = sample.placeholder, number % NUM_IMAGES
            feature_N[here] = np.arange(sample.num_features)
            number += 1
        start += length
    mrope_3N = None
    if sample.grid is not None:
        mrope_3N = mrope_positions(parents_N, image_N, feature_N, [sample.grid] * NUM_IMAGES)
        roots = np.flatnonzero(parents_N < 0)
        if far:
            mrope_3N[:, roots[1] :] = positions_N[roots[1] :]
    return TreeImages(sample.digests, image_N, feature_N, mrope_3N)


def _with_inputs(images: TreeImages | None, positions_N: Any, sample: VisionSample | None) -> RowImages | None:
    in_row = images_of_row([(images, positions_N)])
    if in_row is None or sample is None:
        return None
    inputs = dict(zip(sample.digests, sample.inputs, strict=True))
    return dataclasses.replace(in_row, inputs=tuple(inputs[digest] for digest in in_row.digests))


def _sequences(tree: Row, images: TreeImages | None, sample: VisionSample | None) -> Iterator[Row]:
    """Each leaf's path, with the entries that are in no earlier one."""
    parents_N, owned_from = tree.parents_N.tolist(), 0
    for leaf in torch.nonzero(tree.ends_N == torch.arange(tree.num_tokens) + 1)[:, 0].tolist():
        path = [leaf]
        while parents_N[path[-1]] >= 0:
            path.append(parents_N[path[-1]])
        path.reverse()
        entries = [place for place, node in enumerate(path) if place and node >= owned_from]
        ids_N, positions_N = tree.ids_N[path].numpy(), tree.positions_N[path].numpy()
        here = None if images is None else images.take(np.array(path))
        in_row = _with_inputs(here, positions_N, sample)
        yield _row(ids_N, np.arange(-1, len(path) - 1), positions_N, np.array(entries), in_row)
        owned_from = leaf + 1


def _row(
    ids_N: Any, parents_N: Any, positions_N: Any, entries: Sequence[int] | Any, images: RowImages | None = None
) -> Row:
    n, count = len(ids_N), len(entries)
    ends_N = np.arange(n) + 1
    for node in range(n - 1, -1, -1):
        if parents_N[node] >= 0:
            ends_N[parents_N[node]] = max(ends_N[parents_N[node]], ends_N[node])
    zeros_E = torch.zeros(count, dtype=torch.int64)
    return Row(
        ids_N=torch.from_numpy(np.ascontiguousarray(ids_N)),
        parents_N=torch.from_numpy(np.ascontiguousarray(parents_N)),
        positions_N=torch.from_numpy(np.ascontiguousarray(positions_N)),
        ends_N=torch.from_numpy(ends_N),
        copies_N=torch.ones(n, dtype=torch.int64),
        node_U=torch.from_numpy(np.ascontiguousarray(entries)),
        temperature_U=torch.ones(count),
        truncation_U=torch.empty(0, 3),
        edge_E=torch.arange(count),
        old_logprob_E=torch.zeros(count),
        advantage_E=torch.zeros(count),
        trajectory_E=zeros_E,
        turn_E=zeros_E,
        staleness_E=torch.zeros(count),
        engine_E=zeros_E,
        images=images,
    )
