"""Copies what a sandboxed command left in its folder to where it is kept.

The command was not trusted: links are copied as links, devices, pipes and sockets are left out, and files are this process's
user's alone. A hole in a file counts as bytes.
"""

import contextlib
import errno
import logging
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 256 * 1024 * 1024  # of a kept directory
MAX_LEVELS = 100
MAX_COPYING_S = 120.0  # 50,000 files take 15 s on a busy machine; it is not the agent's time
_NAME_BYTES = 4096  # counted for an entry of any kind
_PIECE_BYTES = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class TooLarge(Exception):
    """More than is kept, in bytes or in time."""


def copy_out(folder: Path, copy: Path) -> None:
    """What is in `copy` already stays. A directory above `MAX_KEPT_BYTES`, or that takes more than `MAX_COPYING_S`, is not kept,
    but for what was there before.

    Each entry is opened where it was seen, and never through a link: a process that still runs may exchange it.
    """
    there = set(os.listdir(copy))
    try:
        with _opened(str(folder), None, os.O_DIRECTORY) as source:
            _Copying(MAX_KEPT_BYTES - size_of(copy), time.monotonic() + MAX_COPYING_S).folder(source, copy, 0)
    except TooLarge as exc:
        delete(copy, str(exc), but=there)
    except OSError as exc:  # a full disk: the episode does not depend on it
        log.warning("agent's files are not all kept in %s: %s", copy, exc.strerror)


class _Copying:
    """`left`: bytes that may still be copied. `until`: when, of the monotonic clock."""

    def __init__(self, budget: int, until: float) -> None:
        self._budget, self._until = budget, until
        self._has_lost = False

    def folder(self, source: int, target: Path, level: int) -> None:
        """Raises TooLarge, and OSError for a full disk."""
        names = []
        with os.scandir(source) as entries:
            # Counted while they are listed: a folder of millions of entries is not held in memory.
            for entry in entries:
                self._take(_NAME_BYTES)
                names.append(entry.name)
        for name in names:
            try:
                self._entry(source, name, target / name, level)
            except OSError as exc:
                if exc.errno in _FULL:
                    raise
                self._note_lost(target / name, exc)

    def _note_lost(self, target: Path, exc: OSError) -> None:
        """The first alone is told: a command may leave many."""
        if not self._has_lost:
            log.warning("not all of an agent's files are kept: %s: %s", target, exc.strerror)
        self._has_lost = True

    def _entry(self, source: int, name: str, target: Path, level: int) -> None:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), target)
        elif stat.S_ISDIR(status.st_mode):
            if level == MAX_LEVELS:
                raise TooLarge(f"more than {MAX_LEVELS} levels of folders")
            target.mkdir(mode=0o700)
            with _opened(name, source, os.O_DIRECTORY) as inner:
                self.folder(inner, target, level + 1)
        elif stat.S_ISREG(status.st_mode):
            with _opened(name, source, 0) as file:
                self._file(file, target)

    def _file(self, source: int, target: Path) -> None:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            return
        self._take(status.st_size)
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700 if status.st_mode & stat.S_IXUSR else 0o600)
        with open(made, "wb") as copy, open(os.dup(source), "rb") as file:
            remaining = status.st_size
            while remaining > 0 and (piece := file.read(min(remaining, _PIECE_BYTES))):  # it may grow meanwhile
                self._take(0)
                copy.write(piece)
                remaining -= len(piece)

    def _take(self, num_bytes: int) -> None:
        self._budget -= num_bytes
        if self._budget < 0:
            raise TooLarge(f"more than {MAX_KEPT_BYTES} bytes")
        if time.monotonic() > self._until:
            raise TooLarge(f"not copied within {MAX_COPYING_S:g} s")


@contextlib.contextmanager
def _opened(name: str, folder: int | None, flags: int) -> Iterator[int]:
    """For reading, not through a link, and without waiting for a pipe. Takes the rights that the command gave away."""
    flags |= os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except PermissionError:  # not as root
        path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{path}", 0o700)
            descriptor = os.open(f"/proc/self/fd/{path}", flags)
        finally:
            os.close(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def bound(folder: Path) -> None:
    """Delete a kept directory that is too large."""
    if size_of(folder) > MAX_KEPT_BYTES:
        delete(folder, f"more than {MAX_KEPT_BYTES} bytes")


def size_of(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def delete(folder: Path, why: str, but: Collection[str] = ()) -> None:
    log.warning("agent's directory is not kept: %s: %s", folder, why)
    if not but:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.name in but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()
