"""Atomic writing of directories: under a temporary name, flushed to disk, then renamed.

A kill leaves a whole directory or none. So does a power cut, unless the writer flushes later, by `flush_directory`.
"""

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors import SafetensorError

from shared.errors import DataError, LeaseLost

TEMPORARY = ".tmp-"
VOID = ".void-"


def write_directory_atomically(target: Path, fill: Callable[[Path], None], *, flush: bool = True) -> None:
    """Write the directory `target` atomically and, with `flush`, durably. Removes leftovers of killed writers first.

    Raises DataError if it cannot be written (for example a full disk), after removing the partial directory. Raises LeaseLost
    if another process has replaced this one (`remove_leftovers`).
    """
    if target.exists():
        raise FileExistsError(f"{target}: exists; a written directory is never changed")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent, target.name)
    temporary = temporary_directory(target)
    try:
        fill(temporary)
        publish_directory(temporary, target, flush=flush)
    except (OSError, SafetensorError) as exc:
        if not temporary.exists():
            raise LeaseLost(f"{temporary} was removed: another process has replaced this one, which ends") from exc
        shutil.rmtree(temporary, ignore_errors=True)  # the partial directory may have filled the disk
        raise DataError(
            f"{target} could not be written: {exc}; free disk space or repair the folder, and start again"
        ) from exc


def temporary_directory(target: Path, writer: str = "") -> Path:
    """Create an empty directory next to `target`; its name marks it as incomplete and contains `writer`."""
    return Path(tempfile.mkdtemp(prefix=target.name + TEMPORARY + writer, dir=target.parent))


def publish_directory(temporary: Path, target: Path, *, flush: bool = True) -> None:
    """Make `temporary` readable for all and flush it to disk, then rename it to `target`.

    mkdtemp and safetensors create private files, but engines may run as another user.
    """
    for path in [*temporary.rglob("*"), temporary]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    if flush:
        _flush_contents(temporary)
    os.rename(temporary, target)
    if flush:
        _fsync(target.parent)


def flush_directory(directory: Path) -> None:
    """Flush what was written without `flush`: the contents, then the name. Nothing to do if it was removed meanwhile.

    Raises DataError if the disk refuses.
    """
    try:
        _flush_contents(directory)
        _fsync(directory.parent)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise DataError(f"{directory} could not be flushed to disk: {exc}; repair the disk, and start again") from exc


def _flush_contents(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _fsync(path)


def remove_leftovers(parent: Path, name: str) -> None:
    """Remove leftovers of killed writers of `parent/name`; `name` may be a glob. The caller guarantees a single writer."""
    discard(parent.glob(f"{name}{TEMPORARY}*"))


def discard(directories: Iterable[Path]) -> None:
    """Remove unfinished directories, one of which may have a live writer: rename each before deleting its files."""
    for path in directories:
        void = path.parent / f"{VOID}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another start may remove it too
            os.rename(path, void)
        for emptied in path.parent.glob(f"{VOID}*"):
            shutil.rmtree(emptied, ignore_errors=True)  # a writer may still be writing: leftovers are removed next time


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
