"""Reads the images of requests, in worker threads: from files to the prompt's tokens and the inputs of the vision tower.

Each file is decoded in a process of its own (`shared.images.decode`) and, while it is known, once: a later request with it needs
its size alone, unless the features have gone (`has_features`).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import torch

from sampler.engine.api.errors import ApiError, bad_value
from sampler.engine.local.prompt_images import KnownImage, PromptImages
from shared.bounded_cache import BoundedCache
from shared.errors import ConfigError, DataError
from shared.images.decode import decode
from shared.images.families import family_of
from shared.images.torch_resizing import by_torch

if TYPE_CHECKING:
    from shared.images.families import Family

MOST_KNOWN = 4096  # images whose tokens and number are remembered
INPUT_BYTES = 1 << 28  # of inputs that wait for the tower; what is more is decoded again


class ImageReader:
    """Of one model. `encode`: of text inside of a prompt, without what begins one."""

    def __init__(self, family: Family, encode: Callable[[str], list[int]]) -> None:
        self._family, self._encode = family, encode
        self._known = BoundedCache[KnownImage](MOST_KNOWN)
        self._waiting: deque[KnownImage] = deque()  # with inputs
        self._lock = Lock()
        self._numbers = count(-1, -1)
        self.has_features: Callable[[KnownImage], bool] = lambda image: False

    @classmethod
    def of(cls, model_path: Path, encode: Callable[[str], list[int]]) -> ImageReader:
        """Of a model of a known family. Raises ConfigError for settings that are not supported."""
        family = family_of(model_path)
        assert family is not None, f"{model_path} reads no images"
        return cls(family, encode)

    @property
    def family(self) -> Family:
        return self._family

    def require_images(self, ids: Sequence[int], num_images: int) -> None:
        """Raises ApiError for another number of image tokens than of images."""
        tokens = ids.count(self._family.placeholder_id)
        if tokens != num_images:
            raise bad_value(
                f"The prompt has {tokens} image tokens {self._family.image_token!r} (id {self._family.placeholder_id}) and "
                f"image_data has {num_images} images; expected one token for each image."
            )

    def read(self, ids: Sequence[int], files: Sequence[bytes]) -> tuple[list[int], PromptImages]:
        """The prompt as the model reads it, and its images. Raises ApiError for what is no image that the model can read."""
        images = [self._known_image(hashlib.sha256(data).hexdigest()) for data in files]
        for at, (image, data) in enumerate(zip(images, files, strict=True)):
            try:
                with image.lock:
                    if not image.ids or (image.inputs is None and not self.has_features(image)):
                        self.read_file(image, data, f"image_data[{at}]")
            except (DataError, ConfigError) as error:
                raise bad_value(str(error)) from error
            except (TimeoutError, MemoryError) as error:
                raise ApiError({"error": {"message": str(error)}}, 503) from error
        return PromptImages.of(ids, self._family.placeholder_id, images, files)

    def read_file(self, image: KnownImage, data: bytes, where: str) -> dict[str, torch.Tensor]:
        """The inputs of the tower. Raises DataError, and TimeoutError or MemoryError for the machine's faults."""
        rgb_HW3 = decode(data, where).rgb_HW3
        height, width = rgb_HW3.shape[:2]
        try:
            ids, grid = self._encode(self._family.tokens(height, width)), self._family.grid(height, width)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        arrays = self._family.inputs(rgb_HW3, by_torch)
        image.ids, image.grid = ids, grid
        inputs = image.inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self._bound_inputs(image)
        return inputs

    def _known_image(self, sha256: str) -> KnownImage:
        with self._lock:
            image = self._known.get(sha256)
            if image is None:
                self._known.put(sha256, image := KnownImage(sha256, next(self._numbers)))
            return image

    def _bound_inputs(self, newest: KnownImage) -> None:
        with self._lock:
            waiting = [image for image in (*self._waiting, newest) if image.inputs is not None]
            self._waiting = deque(dict.fromkeys(waiting))
            size = sum(_bytes_of(image) for image in self._waiting)
            while size > INPUT_BYTES and len(self._waiting) > 1:
                oldest = self._waiting.popleft()
                size -= _bytes_of(oldest)
                oldest.inputs = None


def _bytes_of(image: KnownImage) -> int:
    inputs = image.inputs
    return 0 if inputs is None else sum(tensor.nbytes for tensor in inputs.values())
