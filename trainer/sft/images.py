"""The images of conversations: read when a step needs them, expanded in the prompt, and given to the vision tower."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt

from shared.errors import ConfigError, DataError
from shared.images.families import Family
from shared.images.picture import Picture
from shared.images.placeholders import expanded, refuse_typed, spans
from shared.images.source import load, require_file
from shared.images.torch_resizing import by_torch
from shared.tokens.image_span import ImageSpan
from trainer.sft.blocks import texts_of


class ConversationImages:
    """Reads the images of a file's conversations for one family of models. It holds those of the samples read since `forget`."""

    def __init__(self, family: Family, folder: Path) -> None:
        """`folder`: of the file with the conversations."""
        self._family = family
        self._folder = folder
        self._pictures: dict[str, Picture] = {}

    def forget(self) -> None:
        """Free the pictures read so far."""
        self._pictures = {}

    def inputs(self, sha256: str) -> Mapping[str, npt.NDArray[Any]]:
        """What the vision tower reads of a picture held."""
        return self._family.inputs(self._pictures[sha256].rgb_HW3, by_torch)

    def read(self, sources: Sequence[Mapping[str, Any]], where: str) -> list[Picture]:
        """Raises ConfigError, which names the line and the image."""
        with _located(where):
            pictures = [load(source, self._folder, f"image {at + 1}") for at, source in enumerate(sources)]
        self._pictures |= {picture.sha256: picture for picture in pictures}
        return pictures

    def require_files(self, sources: Sequence[Mapping[str, Any]], where: str) -> None:
        """Raises ConfigError, which names the line and the image, for one whose file is missing or whose form is wrong."""
        with _located(where):
            for at, source in enumerate(sources):
                require_file(source, self._folder, f"image {at + 1}")

    def check_texts(self, messages: Sequence[Mapping[str, Any]], where: str) -> None:
        """Raises ConfigError for a text that contains a token of the family's."""
        for index, message in enumerate(messages):
            for text in texts_of(message):
                with _located(where):
                    refuse_typed(text, self._family, f"messages[{index}]")

    def count(self, text: str) -> int:
        """Images of a rendered prompt."""
        return text.count(self._family.image_token)

    def encoded(
        self, text: str, pictures: Sequence[Picture], encode: Callable[[str], list[int]], where: str
    ) -> tuple[list[int], list[ImageSpan]]:
        """Tokens of a rendered part of a conversation, and where in them each of its pictures is.

        Raises ConfigError for another number of image tokens than of pictures.
        """
        sizes = [(picture.rgb_HW3.shape[0], picture.rgb_HW3.shape[1]) for picture in pictures]
        with _located(where):
            ids = encode(expanded(text, sizes, self._family)[0])
            found = spans(ids, sizes, self._family)
        images = [
            ImageSpan(picture.sha256, span.start, span.count, self._family.grid(*size))
            for picture, span, size in zip(pictures, found, sizes, strict=True)
        ]
        return ids, images


@contextmanager
def _located(where: str) -> Iterator[None]:
    """A DataError as ConfigError that names the line."""
    try:
        yield
    except DataError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
