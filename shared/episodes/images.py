"""Images of an episode as people see them: what its documents say of each one, without its bytes.

messages, tool results ─▶ references by digest ┐
images of the requests ─▶ tokens by digest     ┴▶ EpisodeImage: 640 x 480 pixels, 31,007 bytes, 64 tokens
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from shared.documents import DispatchedSamplingTask
from shared.documents.content import Block, references_of
from shared.documents.images import PlacedImage
from shared.documents.packed import unpack_ints
from shared.episodes.state import EpisodeState, TurnState

_DIGEST = re.compile(r"[0-9a-f]{64}")
DIGEST_DIGITS = 12  # of a digest, in a line of text


@dataclass(frozen=True, slots=True)
class EpisodeImage:
    """`width`, `height`, `num_bytes`: 0 if no document says so. `tokens`: placeholders in a prompt; None if no request has the
    image. `is_stored`: False if its file is not in the store."""

    sha256: str
    width: int = 0
    height: int = 0
    num_bytes: int = 0
    tokens: int | None = None
    is_stored: bool = True

    @property
    def line(self) -> str:
        """`[image 640x480, 64 tokens, 31.0 kB, sha256 9f3a0b1c2d3e…]`"""
        parts = [f"image {self.width}x{self.height}" if self.width else "image"]
        parts += [] if self.tokens is None else [f"{self.tokens} tokens"]
        parts += [num_bytes_text(self.num_bytes)] if self.num_bytes else []
        return f"[{', '.join([*parts, f'sha256 {self.sha256[:DIGEST_DIGITS]}…'])}]"


Part = str | EpisodeImage


@dataclass(frozen=True, slots=True)
class EpisodeImages:
    """What is known of images: references and token counts by digest. `missing`: digests that are not in the store."""

    references: Mapping[str, Block] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()

    @classmethod
    def of(cls, dispatches: Sequence[DispatchedSamplingTask], *contents: Any) -> "EpisodeImages":
        """`contents`: of other documents, such as a task's query."""
        shown = [message.get("content") for dispatch in dispatches for message in dispatch.messages]
        shown += [call.blocks for dispatch in dispatches for call in dispatch.tool_calls]
        references = {
            block["sha256"]: dict(block)
            for content in (*contents, *shown)
            for block in references_of(content)
            if is_digest(block["sha256"])
        }
        return cls(references, tokens_by_digest(image for dispatch in dispatches for image in dispatch.images))

    @property
    def digests(self) -> list[str]:
        return sorted({*self.references, *self.tokens})

    def image(self, sha256: str) -> EpisodeImage:
        block = self.references.get(sha256, {})
        width, height, num_bytes = (_count(block.get(name)) for name in ("width", "height", "num_bytes"))
        return EpisodeImage(sha256, width, height, num_bytes, self.tokens.get(sha256), sha256 not in self.missing)

    def parts(self, content: Any) -> list[Part]:
        """Of a list of blocks, in order. A block of another kind is its JSON."""
        return [self._part(block) for block in content] if isinstance(content, list | tuple) else []

    def text(self, content: Any) -> str:
        """The content with a line in place of each image."""
        if not isinstance(content, list | tuple):
            return content if isinstance(content, str) else "" if content is None else str(content)
        return "\n".join(part if isinstance(part, str) else part.line for part in self.parts(content))

    def _part(self, block: Any) -> Part:
        sha256 = block.get("sha256") if isinstance(block, Mapping) and block.get("type") == "image" else None
        if is_digest(sha256):
            return self.image(sha256)
        text = block.get("text") if isinstance(block, Mapping) and block.get("type") == "text" else None
        return text if isinstance(text, str) else json.dumps(block, ensure_ascii=False, default=str)


def is_digest(value: Any) -> TypeGuard[str]:
    """A SHA-256 in hexadecimal, as the store names images."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def tokens_by_digest(images: Iterable[PlacedImage]) -> dict[str, int]:
    return {image.sha256: image.count for image in images if is_digest(image.sha256)}


def placed(
    images: Sequence[PlacedImage], prompt_ids: Sequence[int] | npt.NDArray[np.int32]
) -> Iterator[tuple[int, int, PlacedImage]]:
    """(first token, the token behind its last placeholder, image) of each image of a request, in order. Images that the ids
    contradict are left out."""
    ids_N = np.asarray(prompt_ids, dtype=np.int64)
    behind = 0
    for image in sorted(images, key=lambda one: one.first):
        if not behind <= image.first < len(ids_N) or image.count < 1:
            continue
        places = np.flatnonzero(ids_N[image.first :] == ids_N[image.first])[: image.count] + image.first
        if len(places) == image.count:
            behind = int(places[-1]) + 1
            yield image.first, behind, image


def compared_tokens(state: EpisodeState, number: int) -> list[int | tuple[int, str]]:
    """`ids_of` a turn, where the tokens of an image are (id, digest): equal for equal images alone."""
    tokens: list[int | tuple[int, str]] = list(state.ids_of(number))
    turn: TurnState | None = state.turn(number)
    end = len(tokens)
    while turn is not None:
        own = unpack_ints(turn.dispatch.prompt_ids)
        for start, stop, image in placed(turn.dispatch.images, own):
            for place in range(turn.shared + start, min(turn.shared + stop, end)):
                tokens[place] = (int(own[place - turn.shared]), image.sha256)
        end = min(end, turn.shared)
        turn = None if turn.parent is None or not end else state.turn(turn.parent)
    return tokens


def num_bytes_text(number: int) -> str:
    """`812 bytes`, `31.0 kB`, `2.4 MB`"""
    if number < 1_000:
        return f"{number} bytes"
    return f"{number / 1e3:.1f} kB" if number < 999_950 else f"{number / 1e6:.1f} MB"


def _count(value: Any) -> int:
    """Of a document that may have been written by hand."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
