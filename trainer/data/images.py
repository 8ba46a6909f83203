"""The images of records: read from the store and decoded beside the step, each distinct one once.

    trees of a group ─▶ digests that nothing holds ─▶ files of the store ─▶ decoder processes ─▶ inputs of the tower ─▶ rows

An image that a group or a row holds is not read again; it is freed with the last of them. One that is missing, damaged or has
other placeholders than the model's image processor makes is a DataError that names the record. Beyond `ARRAY_BYTES` an image is
held as its file, and decoded again when a row is computed: 100 episodes of 50 screenshots would be 90 GB of arrays.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from shared.errors import ConfigError, DataError
from shared.images.decode import decode, decode_all
from shared.images.families import Family, family_of
from shared.images.picture import Picture
from shared.images.torch_resizing import by_torch
from shared.store import Store
from shared.tokens.image_span import ImageSpan, placeholders
from shared.tokens.record_tree import RecordTree
from trainer.process.store_bridge import StoreBridge

MASK = "pixel_attention_mask"  # of ones and zeros; as int64 it takes two thirds of the pixels' memory
ARRAY_BYTES = 2 << 30  # of a process: 110 images of 1024 x 768 pixels
IMAGES_AT_ONCE = 8  # files and decoded pictures in memory beside what the tower reads


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TowerImage:
    """`held`: the arrays that the vision tower reads, or the file. `count`: placeholders; `grid`: as in `ImageSpan`."""

    held: Mapping[str, npt.NDArray[Any]] | bytes
    where: str
    family: Family
    height: int
    width: int

    @property
    def count(self) -> int:
        return self.family.features(self.height, self.width)

    @property
    def grid(self) -> tuple[int, int, int] | None:
        return self.family.grid(self.height, self.width)

    @property
    def array_bytes(self) -> int:
        """Held."""
        return 0 if isinstance(self.held, bytes) else sum(array.nbytes for array in self.held.values())

    def inputs(self) -> Mapping[str, npt.NDArray[Any]]:
        if isinstance(self.held, bytes):
            return _arrays(decode(self.held, self.where), self.where, self.family)
        return self.held


TowerImages = Mapping[str, TowerImage]  # by digest


class RecordImages:
    """Reads the images of records for the model in a directory. One thread at a time may use it.

    `linear`: each sequence has a row of its own, as in `RecordStream`.
    """

    def __init__(self, bridge: StoreBridge, model_directory: Path, *, linear: bool = False) -> None:
        self._bridge = bridge
        self._directory = model_directory
        self._linear = linear
        self._family: Family | None = None  # read for the first image
        self._held: WeakValueDictionary[str, TowerImage] = WeakValueDictionary()

    def of(self, records: Sequence[RecordTree], digests: Collection[str]) -> dict[str, TowerImage]:
        """These images of the records, by digest. Every image of the records is checked as far as its file is not needed.

        Raises DataError for one that cannot be trained; ConfigError for a model of text, and where Pillow is missing.
        """
        with_images = [record for record in records if record.images]
        if not with_images:
            return {}
        family = self._family = self._family or vision_family(self._directory, with_images[0])
        for record in with_images:
            check_placeholders(record, family, linear=self._linear)
        first = first_records(with_images)
        held = {digest: self._held.get(digest) for digest in digests}
        images = {digest: image for digest, image in held.items() if image is not None}
        missing = [(digest, first[digest]) for digest in digests if digest not in images]
        for start in range(0, len(missing), IMAGES_AT_ONCE):
            some = dict(missing[start : start + IMAGES_AT_ONCE])
            free = ARRAY_BYTES - sum(image.array_bytes for image in self._held.values())
            images |= tower_images(self._bridge(image_files(self._bridge.store, some)), some, family, free)
            self._held.update(images)
        for record in with_images:
            check_images(record, images)
        return images


async def read_images(store: Store, records: Sequence[RecordTree], model_directory: Path) -> dict[str, TowerImage]:
    """All images of a few records, at once. Raises as `RecordImages.of`."""
    with_images = [record for record in records if record.images]
    if not with_images:
        return {}
    family, named = vision_family(model_directory, with_images[0]), first_records(with_images)
    for record in with_images:
        check_placeholders(record, family)
    images = await asyncio.to_thread(tower_images, await image_files(store, named), named, family, ARRAY_BYTES)
    for record in with_images:
        check_images(record, images)
    return images


def inputs_of(images: TowerImages, digest: str) -> Mapping[str, npt.NDArray[Any]]:
    return images[digest].inputs()


def vision_family(model_directory: Path, record: RecordTree) -> Family:
    """Raises ConfigError for a model of text."""
    family = family_of(model_directory)
    if family is None:
        raise ConfigError(
            f"record {record.record_id} has {len(record.images)} images, but {model_directory} is a model of text; expected the "
            "vision-language model that sampled the record, or a run whose tasks and tools have no images"
        )
    return family


def first_records(records: Sequence[RecordTree]) -> dict[str, str]:
    """{digest: the image in words}, with the first record that has it."""
    named: dict[str, str] = {}
    for record in records:
        for span in record.images:
            named.setdefault(span.sha256, f"record {record.record_id}: image {span.sha256}")
    return named


async def image_files(store: Store, named: Mapping[str, str]) -> dict[str, bytes]:
    """Their bytes, by digest. Raises DataError."""

    async def read(digest: str, where: str) -> bytes:
        try:
            return await store.images.read(digest)
        except DataError as exc:
            raise DataError(f"{where.removesuffix(f': image {digest}')}: {exc}") from exc

    return dict(zip(named, await asyncio.gather(*(read(*item) for item in named.items())), strict=True))


def tower_images(
    files: Mapping[str, bytes], named: Mapping[str, str], family: Family, array_bytes: int
) -> dict[str, TowerImage]:
    """Decoded in the decoder processes; beyond `array_bytes` the arrays are not kept. Raises DataError for a file that is no
    image, and for one that the model cannot read.
    """
    pictures = decode_all([(data, named[digest]) for digest, data in files.items()])
    images: dict[str, TowerImage] = {}
    for (digest, data), picture in zip(files.items(), pictures, strict=True):
        height, width = picture.rgb_HW3.shape[:2]
        image = TowerImage(_arrays(picture, named[digest], family), named[digest], family, height, width)
        array_bytes -= image.array_bytes
        images[digest] = image if array_bytes >= 0 else replace(image, held=data)
    return images


def _arrays(picture: Picture, where: str, family: Family) -> Mapping[str, npt.NDArray[Any]]:
    try:
        arrays = family.inputs(picture.rgb_HW3, by_torch)
    except DataError as exc:
        raise DataError(f"{where}: {exc}") from exc
    if MASK in arrays:
        arrays[MASK] = arrays[MASK].astype(np.bool_)
    return arrays


def check_placeholders(record: RecordTree, family: Family, *, linear: bool = False) -> None:
    """Raises DataError for an image at other tokens than placeholders, and for placeholders of the prompt without an image.

    A model may sample a placeholder: it is a token like any other, but where a model computes a row in its own way (`linear`).
    """
    is_placeholder_N = record.token_ids_N == family.placeholder_id
    for span in record.images:
        if not is_placeholder_N[span.first]:
            raise DataError(
                f"{_place(record, span)}: its tokens have id {record.token_ids_N[span.first]}; expected {family.placeholder_id}, "
                f"the placeholder of {family.name}"
            )
        is_placeholder_N[placeholders(record, span)] = False
    without = np.flatnonzero(is_placeholder_N & (linear | (record.dispatches_N < 0)))
    if len(without):
        sampled = record.dispatches_N[without[0]] >= 0
        raise DataError(
            f"record {record.record_id}: token {without[0]} is a placeholder without an image"
            + (", which the model sampled; expected prefix_trees true for such data" if sampled else "")
        )


def check_images(record: RecordTree, images: TowerImages) -> None:
    """Raises DataError for an image whose placeholders are not as many, or not in the grid, that its size makes."""
    for span in record.images:
        image = images.get(span.sha256)
        if image is not None and (span.count, span.grid) != (image.count, image.grid):
            raise DataError(
                f"{_place(record, span)}: {_features(span.count, span.grid)}; expected {_features(image.count, image.grid)} for "
                f"{image.width} x {image.height} pixels, by the model's image processor"
            )


def _place(record: RecordTree, span: ImageSpan) -> str:
    return f"record {record.record_id}: image {span.sha256} at token {span.first}"


def _features(count: int, grid: tuple[int, int, int] | None) -> str:
    return f"{count} placeholders" + ("" if grid is None else f" in a grid of {grid}")
