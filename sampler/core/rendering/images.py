"""Images in prompts: which image each one is, its tokens, and where they are.

    rendered   … <|vision_start|><|image_pad|><|vision_end|>What is …      one token of text for each image
    named      … <|vision_start|>⟦9f3a… 480 640⟧<|vision_end|>What is …    `named`: by digest, height and width
    encoded    [start, pad, pad, … pad, end, what, …]                      `encode`: the family's tokens in its place
    places     ImagePlace(sha256="9f3a…", start=1, stop=392, first=1, …)   `places`

Names are characters for private use with a random number, which no text from outside can contain. So a piece of a rendered
prompt has all that its encoding needs, and equal pieces have equal tokens.
"""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sampler.core.rendering.marks import MARK_END, MARK_START
from shared.documents.images import PlacedImage
from shared.errors import ConfigError, DataError
from shared.files.json_file import read_json_file

if TYPE_CHECKING:
    from shared.images.families.protocol import Family

_MARK = "\U000f0003"
_NAMED_BY = f"{secrets.randbelow(10**16):016}"
_NAME = re.compile(f"{_MARK}{_NAMED_BY}:([0-9a-f]{{64}}):([0-9]+):([0-9]+){_MARK}")
_MOST_FEATURES = 1 << 24  # of one image, in the numbers that stand for features


@dataclass(frozen=True, slots=True)
class ImagePlace:
    """One image of a prompt. Tokens [start, stop) are all that stand for it; the first placeholder is token `first`, and `count`
    of them follow, with the marks of tiles between. `grid`: see `PlacedImage`."""

    sha256: str
    start: int
    stop: int
    first: int
    count: int
    grid: tuple[int, int, int] | None

    def moved(self, by: int) -> "ImagePlace":
        return replace(self, start=self.start + by, stop=self.stop + by, first=self.first + by)

    def document(self, shared: int) -> PlacedImage:
        """As the request stores it, of whose prompt the first `shared` tokens are its parent's."""
        return PlacedImage(sha256=self.sha256, first=self.first - shared, count=self.count, grid=self.grid)


class ImageTokens:
    """Of one model. `encode`: of text with marks."""

    def __init__(self, family: "Family", encode: Callable[[str], list[int]]) -> None:
        self.family = family
        self._encode = encode
        self._rendered = re.compile(
            f"{MARK_START}.*?{MARK_END}|({re.escape(family.image_token)})", re.DOTALL
        )  # a marked one is text
        self._measured = lru_cache(maxsize=1024)(self._measure)

    @property
    def placeholder(self) -> int:
        """Id of the token for which engines put features in the place of embeddings."""
        return self.family.placeholder_id

    def named(self, text: str, images: Sequence[Mapping[str, Any]]) -> str:
        """The rendered `text` with a name in place of each image token. `images`: references, in the order of the messages.

        Raises ConfigError for another number of image tokens.
        """
        places = [found.span() for found in self._rendered.finditer(text) if found[1] is not None]
        if len(places) != len(images):
            raise ConfigError(
                f"the prompt has {self.family.image_token!r} {len(places)} times, for {len(images)} images; expected it once for "
                "each (the chat template leaves images out, or a system message has the token)"
            )
        parts: list[str] = []
        done = 0
        for (start, stop), image in zip(places, images, strict=True):
            parts += [text[done:start], _name_of(image)]
            done = stop
        return "".join([*parts, text[done:]])

    def encode(self, named: str) -> list[int]:
        """Ids of a piece of a prompt. Raises ConfigError for an image that the model cannot read."""
        return self._encode(_NAME.sub(lambda name: self._tokens(int(name[2]), int(name[3])), named))

    def places(self, ids: Sequence[int], named: str) -> tuple[ImagePlace, ...]:
        """Of the images named in a text, in its ids. Raises ConfigError where the ids have others."""
        found = _NAME.findall(named)
        if not found:
            return ()
        from shared.images.placeholders import spans  # numpy's part of images: for those who have some

        sizes = [(int(height), int(width)) for _, height, width in found]
        try:
            placed = spans(ids, sizes, self.family)
        except DataError as exc:
            raise ConfigError(f"images of the prompt: {exc}") from exc
        places = []
        for (sha256, _, _), size, span in zip(found, sizes, placed, strict=True):
            before, length = self._measured(*size)
            start = span.start - before
            places.append(ImagePlace(sha256, start, start + length, span.start, span.count, self.family.grid(*size)))
        return tuple(places)

    def _measure(self, height: int, width: int) -> tuple[int, int]:
        """(tokens before the first placeholder, all tokens) of an image."""
        ids = self._encode(self._tokens(height, width))
        return ids.index(self.placeholder), len(ids)

    def _tokens(self, height: int, width: int) -> str:
        try:
            return self.family.tokens(height, width)
        except DataError as exc:
            raise ConfigError(str(exc)) from exc


def image_tokens(folder: Path, encode: Callable[[str], list[int]]) -> ImageTokens | None:
    """Of the model in `folder`; None: a model of text. Raises ConfigError for a vision model of a family that is not known."""
    file = folder / "config.json"
    config = read_json_file(file, "the model's config", keys_once=False) if file.is_file() else {}
    if not isinstance(config, dict) or "vision_config" not in config:
        return None
    from shared.images.families import family_of  # numpy and all families: for vision models alone

    family = family_of(folder)
    return None if family is None else ImageTokens(family, encode)


def placeholder_of(images: ImageTokens | None) -> int | None:
    """The token that stands for a part of an image, which no reply may have; None: a model of text."""
    return None if images is None else images.placeholder


def compared_ids(ids: Sequence[int], images: Sequence[ImagePlace]) -> Sequence[int]:
    """The ids by which prompts are compared: a feature is a negative number of its own, equal for equal images alone."""
    if not images:
        return ids
    compared = list(ids)
    for image in images:
        number = -1 - int(image.sha256[:16], 16) * _MOST_FEATURES
        compared[image.first : image.stop] = range(number, number - (image.stop - image.first), -1)
    return compared


def _name_of(image: Mapping[str, Any]) -> str:
    try:
        sha256, height, width = image["sha256"], int(image["height"]), int(image["width"])
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"a reference to an image is {json.dumps(image, default=str)[:200]}: {exc!r} is wrong"
        ) from exc
    return f"{_MARK}{_NAMED_BY}:{sha256}:{height}:{width}{_MARK}"
