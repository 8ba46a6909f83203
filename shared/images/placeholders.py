"""Placeholders of images: from a rendered prompt to the text that is tokenized, and from token ids to the span of each image.

    "<image>What?"  ──expanded──▶  "<fake…><global-img><image><image><image><image><fake…>What?"  ──tokenizer, spans──▶  [2:6]

The rule of typed tokens: a placeholder stands for an image, never for text. If the text of a user, a tool or an environment
contains `<image>`, it is either
  * encoded as ordinary characters: the sampler marks control tokens in untrusted text before it renders, and `expanded`
    leaves alone what `plain` matches; or
  * refused before it is rendered, where nothing marks it (`refuse_typed`: supervised data).
Behind both, `spans` counts: ids with more or fewer placeholders than the images account for, or with the placeholder of a
video, are refused, since features would be put in the wrong places.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shared.errors import DataError
from shared.images.families.protocol import Family

Size = tuple[int, int]  # height, width in pixels of the original image


@dataclass(frozen=True, slots=True)
class PlaceholderSpan:
    """Tokens [start, stop) of one image: from its first placeholder to behind its last, with the marks of tiles between. `count`:
    the placeholders among them."""

    start: int
    stop: int
    count: int


def expanded(
    text: str, sizes: Sequence[Size], family: Family, plain: re.Pattern[str] | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """`text` with each image token replaced by the tokens of its image, in order; and [start, stop) of the characters of each
    replacement.

    `plain` matches text in which an image token is ordinary text (the sampler's marks). Raises DataError for another number
    of image tokens than of sizes.
    """
    token = re.escape(family.image_token)
    pattern = re.compile(
        token if plain is None else f"(?P<plain_text>{plain.pattern})|{token}", plain.flags if plain else 0
    )
    places = [found.span() for found in pattern.finditer(text) if plain is None or found["plain_text"] is None]
    if len(places) != len(sizes):
        raise DataError(
            f"the prompt contains {family.image_token!r} {len(places)} times, for {len(sizes)} images; expected it once for each "
            "image (a chat template that leaves image blocks out, or text that contains the token)"
        )
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    done = length = 0
    for (start, stop), (height, width) in zip(places, sizes, strict=True):
        tokens = family.tokens(height, width)
        parts += [text[done:start], tokens]
        length += start - done
        spans.append((length, length + len(tokens)))
        length, done = length + len(tokens), stop
    return "".join([*parts, text[done:]]), spans


def spans(ids: Sequence[int], sizes: Sequence[Size], family: Family) -> list[PlaceholderSpan]:
    """The span of each image in `ids`. Raises DataError if the placeholders are not exactly those of the images."""
    ids_N = np.asarray(ids, dtype=np.int64)
    if family.video_id is not None and (ids_N == family.video_id).any():
        at = int((ids_N == family.video_id).argmax())
        raise DataError(f"token {at} is the placeholder of a video, which is not supported; expected images and text")
    places = np.flatnonzero(ids_N == family.placeholder_id)
    runs = [family.runs(height, width) for height, width in sizes]
    expected = sum(map(sum, runs))
    if len(places) != expected:
        raise DataError(
            f"{len(places)} placeholder tokens {family.image_token!r} for {len(sizes)} images, which have {expected}; "
            "expected as many: text that contains the token must be encoded as ordinary characters"
        )
    found, done = [], 0
    for index, lengths in enumerate(runs):
        first = done
        for length in lengths:
            _require_run(places[done : done + length], index)
            done += length
        found.append(PlaceholderSpan(int(places[first]), int(places[done - 1]) + 1, done - first))
    return found


def _require_run(places: "np.ndarray[tuple[int], np.dtype[np.int64]]", index: int) -> None:
    if places[-1] - places[0] != len(places) - 1:
        raise DataError(
            f"image {index}: {len(places)} placeholders between tokens {places[0]} and {places[-1]}; expected them in a row"
        )


def refuse_typed(text: str, family: Family, where: str) -> None:
    """Raises DataError, which names `where`, if untrusted `text` contains a token that stands for an image, or around one."""
    typed = [token for token in family.control_tokens if token in text]
    if typed:
        raise DataError(
            f"{where}: the text contains {typed[0]!r}, which {family.name} reads as part of an image; "
            "expected an image block, or other text"
        )
