"""Directories that appear complete or not at all: written under a temporary name, flushed to disk, renamed."""

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


def write_directory_atomically(target: Path, fill: Callable[[Path], None]) -> None:
    """Make the directory `target` appear complete and durable. Leftovers of killed writers to it are removed first.

    Raises DataError where it cannot be written (a full disk, say); then nothing of it stays. LeaseLost where another process has
    taken this one for dead (`remove_leftovers`).
    """
    if target.exists():
        raise FileExistsError(f"{target}: exists already; a written directory is never changed")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent, target.name)
    temporary = temporary_directory(target)
    try:
        fill(temporary)
        publish_directory(temporary, target)
    except (OSError, SafetensorError) as exc:
        if not temporary.exists():
            raise LeaseLost(
                f"{temporary} was taken away: another process writes in this one's place, and this one ends"
            ) from exc
        shutil.rmtree(temporary, ignore_errors=True)  # what is there of it may be what filled the disk
        raise DataError(
            f"{target} could not be written: {exc}; make room, or mend the folder, and start again"
        ) from exc


def temporary_directory(target: Path, writer: str = "") -> Path:
    """A new empty directory next to `target`, whose name says that it is not complete, and begins with `writer`."""
    return Path(tempfile.mkdtemp(prefix=target.name + TEMPORARY + writer, dir=target.parent))


def publish_directory(temporary: Path, target: Path) -> None:
    """Flush every file and folder of `temporary` to disk, readable for all, then rename it to `target`.

    mkdtemp and safetensors make what they write private; engines may run as another user.
    """
    for path in [*temporary.rglob("*"), temporary]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        _fsync(path)
    os.rename(temporary, target)
    _fsync(target.parent)


def remove_leftovers(parent: Path, name: str) -> None:
    """Remove what killed writers of `parent/name` left; `name` may be a glob. One writer at a time is the caller's promise."""
    discard(parent.glob(f"{name}{TEMPORARY}*"))


def discard(directories: Iterable[Path]) -> None:
    """Take unfinished directories from their writers, of whom one may live: each has lost its name before it is emptied."""
    for path in directories:
        void = path.parent / f"{VOID}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another start does the same
            os.rename(path, void)
        for emptied in path.parent.glob(f"{VOID}*"):
            shutil.rmtree(emptied, ignore_errors=True)  # a writer may be in it still: what stays goes the next time


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
