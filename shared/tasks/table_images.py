"""Images of tables: what a task file cannot hold or would not reach becomes a file in a folder beside it.

    {"bytes": b"…", "path": "1.png"}  ─▶  tasks.images/9f3a….png, and the path to it in the line

So do paths of a table that is in another folder. URLs and base64 stay as they are. Equal images are one file.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shared.documents.content import IMAGE_BLOCKS
from shared.errors import DataError
from shared.files.written_file import written_whole
from shared.tasks.line_errors import MAX_ERRORS, LineError, TaskFileError
from shared.tasks.lines import TaskLine
from shared.tasks.query_blocks import IMAGE_KEYS, QueryBlock
from shared.tasks.task_images import TaskImages, batches


class TableImages:
    """Of one conversion. After an error no new file of it is left."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source = source.parent
        self._folder = target.parent / f"{target.stem}.images"
        self._is_near = source.parent.resolve() == target.parent.resolve()
        self._written: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not self._written:
            return
        for path in self._written:
            path.unlink(missing_ok=True)
        if not any(self._folder.iterdir()):
            self._folder.rmdir()

    def of_field(self, name: str, value: Any, where: str) -> Any:
        """The value of the field `name` as JSON can hold it. Raises DataError for what is no image."""
        if name == "query" and isinstance(value, list | tuple):
            return [self._block(block, f"{where}, block {at + 1}") for at, block in enumerate(value)]
        if name == "images" and value not in (None, ""):
            images = value if isinstance(value, list | tuple) else [value]
            return [self._image(image, f"{where}, image {at + 1}") for at, image in enumerate(images)]
        return value

    def _block(self, block: Any, where: str) -> Any:
        if not isinstance(block, Mapping) or block.get("type") not in IMAGE_BLOCKS:
            return block
        path = self._path(block, where)
        return block if path is None else {"type": "image", "path": path}

    def _image(self, image: Any, where: str) -> Any:
        if isinstance(image, bytes | bytearray):
            return self._path({"bytes": image}, where)
        if isinstance(image, str | Mapping):
            return self._path(image if isinstance(image, Mapping) else {"image": image}, where) or image
        return image

    def _path(self, block: Mapping[str, Any], where: str) -> str | None:
        """Of the file that is written for the block; None: it stays as it is."""
        if all(block.get(name) is None for name in IMAGE_KEYS):
            return None
        from shared.images.header import header_of  # numpy's part of images: for those who have some
        from shared.images.source import bytes_of, form_of

        form, _ = form_of(block, where)
        if form not in ("bytes", "path") or (form == "path" and self._is_near):
            return None
        data = bytes_of(block, self._source, where)
        path = self._folder / f"{hashlib.sha256(data).hexdigest()}.{header_of(data, where).format.lower()}"
        if not path.exists():
            with written_whole(path) as temporary:
                temporary.write_bytes(data)
            self._written.append(path)
        return f"{self._folder.name}/{path.name}"


def check_images(path: Path, lines: Iterable[TaskLine]) -> None:
    """Decode the images of a task file, without those of http(s) URLs. Raises TaskFileError."""
    images = TaskImages()
    errors: list[LineError] = []
    for batch in batches(map(_without_urls, lines)):
        if len(errors) < MAX_ERRORS and any(line.blocks for line in batch):
            errors += images.decode([(path, line) for line in batch])[1]
    if errors:
        raise TaskFileError(errors[:MAX_ERRORS])


def _without_urls(line: TaskLine) -> TaskLine:
    if not line.blocks:
        return line
    from shared.images.fetched import is_web_address
    from shared.images.source import form_of

    def is_fetched(one: QueryBlock) -> bool:
        try:
            return one.is_image and is_web_address(str(form_of(one.block, one.where)[1]))
        except DataError:  # decoding says so, with the row
            return False

    return replace(line, blocks=tuple(one for one in line.blocks if not is_fetched(one)))
