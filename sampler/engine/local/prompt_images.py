"""Images of one prompt: where their features stand, by what prefixes are compared, and the positions that follow.

    prompt      [what is <start> I I I I <end> this]     I: the placeholder's id, in the places of the image's features alone
    compared    [what is <start> -7 -7 -7 -7 <end> this] -7: this image's number. Equal prefixes have equal images.
    positions   [0 1 2 3 3 4 4 5 6] and two more rows: M-RoPE, where the images have grids; otherwise those of text

A token with the placeholder's id that the model has sampled is an ordinary token: places are known from the request.

    suffix _N  token of the prompt      _P  placeholder of the prompt      _3N  (time, height, width) of each token
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

Grid = tuple[int, int, int]
Int64 = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class KnownImage:
    """A file that requests have had. `number`: negative, no other image's. `ids`: its tokens in a prompt, empty until it is read
    (under `lock`). `inputs`: of the vision tower, between reading and the computation of the features."""

    sha256: str
    number: int
    ids: list[int] = field(default_factory=list)
    grid: Grid | None = None
    inputs: dict[str, torch.Tensor] | None = None
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True, slots=True, eq=False)
class PromptImages:
    """`images` with their `files`, in order, and for each placeholder whose it is and which of its features.

    `rotary_3N`: positions of the prompt; None: those of text. `shift`: a position behind the prompt minus the token's index.
    """

    images: tuple[KnownImage, ...]
    files: tuple[bytes, ...]
    token_P: Int64
    image_P: Int64
    feature_P: Int64
    rotary_3N: Int64 | None
    shift: int

    @classmethod
    def of(
        cls, ids: Sequence[int], placeholder: int, images: Sequence[KnownImage], files: Sequence[bytes]
    ) -> tuple[list[int], PromptImages]:
        """`ids` has one placeholder for each image. Returns the prompt with the tokens of the images in their places."""
        prompt: list[int] = []
        starts: list[int] = []
        rest = iter(images)
        for token in ids:
            if token != placeholder:
                prompt.append(token)
                continue
            starts.append(len(prompt))
            prompt += next(rest).ids
        places = [
            start + np.flatnonzero(np.asarray(image.ids) == placeholder)
            for start, image in zip(starts, images, strict=True)
        ]
        counts = [len(of_image) for of_image in places]
        grids = [image.grid for image in images]
        rotary_3N, shift = mrope(len(prompt), [int(of_image[0]) for of_image in places], grids)
        return prompt, cls(
            images=tuple(images),
            files=tuple(files),
            token_P=np.concatenate(places),
            image_P=np.repeat(np.arange(len(images)), counts),
            feature_P=np.concatenate([np.arange(count) for count in counts]),
            rotary_3N=rotary_3N,
            shift=shift,
        )

    def compared(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tokens that begin with the prompt, as prefixes are compared."""
        compared = tokens.copy()
        compared[self.token_P] = np.array([image.number for image in self.images], dtype=np.int32)[self.image_P]
        return compared

    def placeholders(self, start: int, stop: int) -> slice:
        """The placeholders among tokens [start, stop)."""
        first, last = np.searchsorted(self.token_P, (start, stop))
        return slice(int(first), int(last))

    def positions(self, start: int, stop: int) -> Int64:
        """Of tokens [start, stop): [3, stop - start], or [stop - start] where they are those of text. What is behind the prompt
        counts on in all three parts."""
        if self.rotary_3N is None:
            return np.arange(start, stop)
        size = self.rotary_3N.shape[1]
        later = np.arange(max(start, size), max(stop, size)) + self.shift
        return np.concatenate([self.rotary_3N[:, start:stop], np.broadcast_to(later, (3, len(later)))], axis=1)


def mrope(length: int, firsts: Sequence[int], grids: Sequence[Grid | None]) -> tuple[Int64 | None, int]:
    """Positions [3, length] of M-RoPE (Qwen2-VL, arXiv 2409.12191, section 2.1), and the shift of what follows.

    An image's features stand at its first position plus their place in its grid; what follows it stands max(h, w) behind that.
    """
    if not any(grids):
        return None, 0
    index_N, shift_N = np.arange(length), np.zeros(length, dtype=np.int64)
    within_3N = np.zeros((3, length), dtype=np.int64)
    for first, grid in zip(firsts, grids, strict=True):
        assert grid is not None, "a model's images have grids or none has"
        count = int(np.prod(grid))
        within_3N[:, first : first + count] = np.stack(np.unravel_index(np.arange(count), grid))
        shift_N[first : first + count] -= np.arange(count)  # all at the first position
        shift_N[first + count :] += max(grid[1:]) - count
    shift = sum(max(grid[1:]) - int(np.prod(grid)) for grid in grids if grid is not None)
    return index_N + shift_N + within_3N, shift
