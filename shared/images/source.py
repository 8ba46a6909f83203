"""Images of content blocks: where a block says that its image is, and the bytes from there.

{"type": "image", "path": "charts/1.png"}                  relative to the file that names it
{"type": "image", "url": "data:image/png;base64,iVBOR…"}   or http(s), from the hosts of `ImageBounds.image_hosts`
{"type": "image", "base64": "iVBOR…"}
{"type": "image_url", "image_url": {"url": …}}             as requests to OpenAI have it
{"type": "image", "image": …}                              as transformers has it: one of the others, a path or a URL
{"bytes": b"…", "path": …}                                 as data sets of Hugging Face have it in Parquet
"""

import base64
import binascii
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import DataError
from shared.images.bounds import ImageBounds
from shared.images.decode import DEFAULT, decode, decode_all
from shared.images.fetched import fetched, is_web_address
from shared.images.picture import Picture

FORMS = 'expected one of "path", "url", "base64" and "bytes"'


def load(block: Mapping[str, Any], folder: Path, where: str, bounds: ImageBounds = DEFAULT) -> Picture:
    """`folder`: of the file that has the block. `where` names the image in messages. Raises as `decode`."""
    return decode(bytes_of(block, folder, where, bounds), where, bounds)


def load_all(
    blocks: Sequence[Mapping[str, Any]], folder: Path, where: str, bounds: ImageBounds = DEFAULT
) -> list[Picture]:
    """All images of one conversation or task, several at once. Raises as `decode`, also for too many."""
    bounds.check_count(len(blocks), where)
    names = [f"{where}: image {at + 1}" for at in range(len(blocks))]
    files = [(bytes_of(block, folder, name, bounds), name) for block, name in zip(blocks, names, strict=True)]
    return decode_all(files, bounds)


def bytes_of(block: Mapping[str, Any], folder: Path | None, where: str, bounds: ImageBounds = DEFAULT) -> bytes:
    """The image's bytes as they are, at most `bounds.max_bytes`. `folder`: None for messages, which read no files. Raises
    DataError."""
    name, value = _form(block, where)
    if name == "path" and folder is None:
        raise DataError(f"{where}: a path in a message; expected a data: URL, base64 or bytes: messages read no files")
    if isinstance(value, bytes):
        return _bounded(value, where, bounds)
    if name == "path":
        assert folder is not None, "refused above"
        with _opened(value, folder, where, bounds) as file:
            return _bounded(file.read(bounds.max_bytes + 1), where, bounds)
    return _of_base64(value, where, bounds) if name == "base64" else _of_url(value, where, bounds)


def require_file(block: Mapping[str, Any], folder: Path, where: str, bounds: ImageBounds = DEFAULT) -> None:
    """Raises DataError for a block of a wrong form, and for a path that `bytes_of` cannot read. Reads no content."""
    name, value = _form(block, where)
    if name == "path" and isinstance(value, str):
        with _opened(value, folder, where, bounds):
            pass


def _form(block: Mapping[str, Any], where: str) -> "tuple[str, str] | tuple[str, bytes]":
    """Which of the forms it has, and its value. Raises DataError."""
    for name in ("image", "image_url"):
        inner = block.get(name)
        if inner is not None:
            block = inner if isinstance(inner, Mapping) else {"url" if _has_scheme(inner) else "path": inner}
            break
    given = {name: block[name] for name in ("bytes", "base64", "url", "path") if block.get(name) is not None}
    if "bytes" in given:
        given.pop("path", None)  # the name that the file once had
    if len(given) != 1:
        names = ", ".join(sorted(given)) or ", ".join(sorted(map(str, block)))[:100] or "nothing"
        raise DataError(f"{where}: an image block with {names}; {FORMS}")
    ((name, value),) = given.items()
    if name == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return name, bytes(value)
    if name == "bytes" or not isinstance(value, str):
        raise DataError(
            f'{where}: "{name}" is {type(value).__name__}; expected {"bytes" if name == "bytes" else "a text"}'
        )
    return name, value


def _has_scheme(value: Any) -> bool:
    return isinstance(value, str) and (value[:5].lower() == "data:" or is_web_address(value))


def _of_url(url: str, where: str, bounds: ImageBounds) -> bytes:
    if is_web_address(url):
        return fetched(url, where, bounds)
    head, comma, content = url.partition(",")
    if head[:5].lower() != "data:":
        raise DataError(
            f'{where}: "url" is {url[:60]!r}; expected a data: URL, or http(s) from a host of `image_hosts`'
        )
    if not comma or not head.lower().endswith(";base64"):
        raise DataError(f'{where}: a data: URL that begins with {head[:60]!r}; expected "data:image/...;base64,..."')
    return _of_base64(content, where, bounds)


def _of_base64(text: str, where: str, bounds: ImageBounds) -> bytes:
    if len(text) > 2 * bounds.max_bytes + 4:  # four characters for three bytes, and line ends
        raise DataError(f"{where}: {len(text):,} characters of base64; expected {bounds.max_bytes:,} bytes at most")
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise DataError(f"{where}: no base64 that can be decoded: {exc}") from exc
    return _bounded(data, where, bounds)


@contextmanager
def _opened(name: str, folder: Path, where: str, bounds: ImageBounds) -> Iterator[BinaryIO]:
    try:
        home = folder.resolve()
        path = (home / name).resolve()
        inside = path.is_relative_to(home) and not os.path.isabs(name)
        if not inside and not bounds.absolute_paths:
            raise DataError(
                f'{where}: "path" is {name[:200]!r}, which leads out of {home}; expected a path below it '
                "(links count as what they lead to; `absolute_paths` allows any)"
            )
        # Non-blocking: of a pipe without a writer `open` would not return.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{where}: {path} is no regular file; expected an image")
            if status.st_size > bounds.max_bytes:
                raise _too_large(status.st_size, where, bounds)
            yield file
    except (OSError, ValueError, RuntimeError) as exc:  # RuntimeError: a loop of links, before Python 3.13
        why = (exc.strerror if isinstance(exc, OSError) else None) or exc
        raise DataError(f"{where}: {name[:200]!r} in {folder} cannot be read: {why}") from exc


def _bounded(data: bytes, where: str, bounds: ImageBounds) -> bytes:
    if len(data) > bounds.max_bytes:
        raise _too_large(len(data), where, bounds)
    return data


def _too_large(num_bytes: int, where: str, bounds: ImageBounds) -> DataError:
    return DataError(f"{where}: {num_bytes:,} bytes; expected {bounds.max_bytes:,} at most")
