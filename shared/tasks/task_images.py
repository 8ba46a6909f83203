"""Images of one import: each is read and decoded while its file is checked, and stored before the tasks that show it.

    check    bytes ─▶ decoded in a few processes ─▶ reference: digest, width, height       the bytes are dropped
    import   bytes ─▶ the same digest ─▶ `store.images.keep` ─▶ tasks with references

A file that changes between the two is decoded again. Memory: a few images at a time, and a reference (some 500 bytes) for each.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from shared.documents.content import Block, image_block
from shared.documents.images import ImageFile
from shared.errors import DataError
from shared.store import Store
from shared.store.tasks import TASKS_AT_ONCE
from shared.tasks.line_errors import LineError, TaskFileError
from shared.tasks.lines import TaskLine
from shared.tasks.query_blocks import QueryBlock

if TYPE_CHECKING:
    from shared.images.bounds import ImageBounds

IMAGES_AT_ONCE = 64  # of one batch of tasks
STORED_AT_ONCE_BYTES = 16_000_000
THREADS = 4  # each waits for a file or a decoder

Place = tuple[Path, TaskLine]  # a line and its file


class WithBlocks(Protocol):
    @property
    def blocks(self) -> tuple[QueryBlock, ...]: ...


Item = TypeVar("Item", bound=WithBlocks)


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Up to `TASKS_AT_ONCE`; fewer where they have images."""
    batch: list[Item] = []
    num_images = 0
    for item in items:
        batch.append(item)
        if item.blocks:
            num_images += sum(one.is_image for one in item.blocks)
        if len(batch) == TASKS_AT_ONCE or num_images >= IMAGES_AT_ONCE:
            yield batch
            batch, num_images = [], 0
    if batch:
        yield batch


class TaskImages:
    """Of one import. `image_hosts`: those from which http(s) URLs are fetched, once while checked and once to be stored."""

    def __init__(self, image_hosts: Sequence[str] = ()) -> None:
        self._hosts = tuple(image_hosts)
        self._by_source: dict[bytes, Block] = {}  # references
        self._by_digest: dict[str, Block] = {}
        self._stored: set[str] = set()  # digests

    async def check(self, places: Sequence[Place]) -> tuple[list[TaskLine], list[LineError]]:
        """(the lines, with references in their payloads; errors, whose lines are left out). Every image was decoded.

        Raises ConfigError without Pillow.
        """
        return await asyncio.to_thread(self.decode, places)

    async def store(self, store: Store, places: Sequence[Place]) -> list[TaskLine]:
        """The lines, with references in their payloads, after their images were stored. Raises TaskFileError for images that
        became unreadable since they were checked."""
        _, errors = await self.check(places)
        if errors:
            raise TaskFileError(errors)
        images = [(path, line, one) for path, line in places for one in line.blocks if one.is_image]
        missing = {str(self._reference(path, one)["sha256"]) for path, _, one in images} - self._stored
        self._stored |= (await store.images.sizes(sorted(missing))).keys()
        files: list[ImageFile] = []
        for path, line, one in images:
            if self._reference(path, one)["sha256"] not in self._stored:
                files.append(await asyncio.to_thread(self._file, path, line, one))
                self._stored.add(files[-1].sha256)
            if sum(len(file.data) for file in files) > STORED_AT_ONCE_BYTES:
                await store.images.keep(files)
                files = []
        await store.images.keep(files)
        return [self._referring(path, line) for path, line in places]

    def decode(self, places: Sequence[Place]) -> tuple[list[TaskLine], list[LineError]]:
        """As `check`; the caller's thread waits."""
        errors = [error for path, line in places for error in self._count_errors(path, line)]
        bounded = _without(places, errors)
        images = [(path, line, one) for path, line in bounded for one in line.blocks if one.is_image]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="task-image") as threads:
            errors += [error for error in threads.map(self._problem, images) if error is not None]
        return [self._referring(path, line) for path, line in _without(bounded, errors)], errors

    # ------------------------------------------------------------------ inside

    def _count_errors(self, path: Path, line: TaskLine) -> Iterator[LineError]:
        try:
            self._bounds().check_count(sum(one.is_image for one in line.blocks), '"query"')
        except DataError as exc:
            yield LineError(str(path), line.number, str(exc))

    def _problem(self, image: tuple[Path, TaskLine, QueryBlock]) -> LineError | None:
        path, line, one = image
        try:
            if _source(path, one) not in self._by_source:
                self._read(path, one)
        except DataError as exc:
            return LineError(str(path), line.number, str(exc))
        return None

    def _file(self, path: Path, line: TaskLine, one: QueryBlock) -> ImageFile:
        try:
            return self._read(path, one)
        except DataError as exc:
            raise TaskFileError([LineError(str(path), line.number, str(exc))]) from exc

    def _read(self, path: Path, one: QueryBlock) -> ImageFile:
        """Its bytes, decoded unless equal ones were. Its reference is noted. Raises DataError."""
        from shared.images.decode import decode  # Pillow's part of images: for those who have some
        from shared.images.header import header_of
        from shared.images.source import bytes_of

        data = bytes_of(one.block, path.parent, one.where, self._bounds())
        sha256 = hashlib.sha256(data).hexdigest()
        block = self._by_digest.get(sha256)
        if block is None:
            height, width = decode(data, one.where, self._bounds()).rgb_HW3.shape[:2]
        else:
            height, width = block["height"], block["width"]
        file = ImageFile(sha256, data, header_of(data, one.where).format, width, height)
        self._by_source[_source(path, one)] = self._by_digest.setdefault(sha256, image_block(file))
        return file

    def _reference(self, path: Path, one: QueryBlock) -> Block:
        return self._by_source[_source(path, one)]

    def _referring(self, path: Path, line: TaskLine) -> TaskLine:
        if not line.blocks:
            return line
        blocks = [self._reference(path, one) if one.is_image else one.block for one in line.blocks]
        return replace(line, payload=line.payload.model_copy(update={"query_blocks": blocks}))

    def _bounds(self) -> "ImageBounds":
        from shared.images.bounds import ImageBounds

        return ImageBounds(image_hosts=self._hosts)


def _without(places: Sequence[Place], errors: Sequence[LineError]) -> list[Place]:
    wrong = {(error.file, error.number) for error in errors}
    return [(path, line) for path, line in places if (str(path), line.number) not in wrong]


def missing_files(path: Path, line: TaskLine) -> Iterator[LineError]:
    """Of the line's images: those of a wrong form, and paths without a file. Reads none."""
    for one in line.blocks:
        if one.is_image:
            from shared.images.source import require_file

            try:
                require_file(one.block, path.parent, one.where)
            except DataError as exc:
                yield LineError(str(path), line.number, str(exc))


def _source(path: Path, one: QueryBlock) -> bytes:
    """By which an image that was read already is known: its block, and the folder that paths are relative to."""
    text = json.dumps([str(path.parent), one.block], sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
