"""What a Gymnasium world shows the model, by `show` of its task: text, pixels of its observation, its rendered picture.

text      the drawing (render mode "ansi"), and the observation as JSON, without the images that `pixels` shows
pixels    images of the observation: arrays of HxWx3 or HxW, the whole observation or parts of it
render    what `render` draws (render mode "rgb_array")

Without `show`: text; of an observation with more numbers than a prompt takes, pixels, and text of its other parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.environments.adapters.observed import MAX_NUMBERS, num_values
from sampler.environments.checked_step import image_part, shown
from sampler.environments.environment import TaskRefused
from sampler.environments.task_fields import FieldType, meant

TEXT_KIND, PIXELS, RENDER = KINDS = ("text", "pixels", "render")
LONGEST_EDGE = 512  # pixels: a frame of 600 x 400 may be thousands of tokens
ALL = FieldType(
    "one of text, pixels and render, or a list of them",
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value))
    ),
)


@dataclass(frozen=True, slots=True)
class Showing:
    """`least`: numbers of the smallest array that is an image. `longest_edge`: pixels; larger images are scaled down."""

    kinds: frozenset[str]
    least: int
    longest_edge: int

    def has(self, kind: str) -> bool:
        return kind in self.kinds

    def text_values(self, space: Any) -> int:
        """Numbers of an observation as text."""
        if not self.has(TEXT_KIND):
            return 0
        images = sum(num_values(part) for _, part in _images(space, self.least)) if self.has(PIXELS) else 0
        return num_values(space) - images

    def split(self, space: Any, observation: Any) -> tuple[Any, list[tuple[str, Any]]]:
        """(what is text, images by their names); what is text is None where the whole observation is an image."""
        if not self.has(PIXELS):
            return observation, []
        if _is_image(space, self.least):
            return None, [("", observation)]
        parts = getattr(space, "spaces", None)
        if not isinstance(parts, Mapping):
            return observation, []
        rest, images = {}, []
        for name, part in parts.items():
            text, more = self.split(part, observation[name])
            images += [(f"{name}.{inner}".rstrip("."), image) for inner, image in more]
            if text is not None:
                rest[name] = text
        return rest or None, images

    def parts(self, images: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
        """Of a content: each image, behind its name where there are several. Raises WrongStep."""
        parts: list[dict[str, Any]] = []
        for name, image in images:
            if len(images) > 1:
                parts.append({"type": "text", "text": f"{name}:"})
            parts.append(image_part(name or "observation", image, self.longest_edge))
        return parts


def showing_of(name: str, space: Any, given: Any, longest_edge: int | None) -> Showing:
    """Raises TaskRefused for kinds that the world does not have."""
    edge = LONGEST_EDGE if longest_edge is None else longest_edge
    if given is None:
        large = [path for path, _ in _images(space, MAX_NUMBERS + 1)]
        kinds = {PIXELS} if large == [""] else {TEXT_KIND, PIXELS} if large else {TEXT_KIND}
        return Showing(frozenset(kinds), MAX_NUMBERS + 1, edge)
    chosen = [given] if isinstance(given, str) else list(given)
    unknown = [kind for kind in chosen if kind not in KINDS]
    if unknown:
        raise TaskRefused(f"show has {unknown[0]!r}; expected some of {', '.join(KINDS)}{meant(unknown[0], KINDS)}")
    if PIXELS in chosen and not list(_images(space, 1)):
        raise TaskRefused(f"show has 'pixels', and {name} observes {shown(space)}, no image; expected text or render")
    return Showing(frozenset(chosen), 1, edge)


def _images(space: Any, least: int, path: str = "") -> Iterator[tuple[str, Any]]:
    """(name, space) of the parts that are images; the name of the whole observation is empty."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        for name, part in parts.items():
            yield from _images(part, least, f"{path}.{name}".strip("."))
    elif _is_image(space, least):
        yield path, space


def _is_image(space: Any, least: int) -> bool:
    """Of 8 bits from 0 to 255 (a board's codes have fewer), or of floats from 0 to 1 in three dimensions."""
    shape = tuple(getattr(space, "shape", None) or ())
    if type(space).__name__ != "Box" or len(shape) not in (2, 3) or num_values(space) < least:
        return False
    if len(shape) == 3 and shape[2] not in (1, 3, 4) and shape[0] not in (1, 3):
        return False
    low, high = space.low.min(), space.high.max()
    if str(space.dtype) == "uint8":
        return bool(low == 0 and high == 255)
    return bool(space.dtype.kind == "f" and len(shape) == 3 and low == 0 and high == 1)
