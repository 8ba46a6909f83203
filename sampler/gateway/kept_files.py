"""Copies what a sandboxed command left in its folder to where it is kept.

The command was not trusted: links are copied as links, devices, pipes and sockets are left out, and no file keeps rights beyond
its owner's. A hole in a file counts as bytes.
"""

import contextlib
import logging
import os
import shutil
import stat
from pathlib import Path

log = logging.getLogger(__name__)

MAX_KEPT_BYTES = 256 * 1024 * 1024  # of a kept directory
MAX_LEVELS = 100
_NAME_BYTES = 4096  # counted for an entry of any kind


class TooLarge(Exception):
    """More than is kept."""


def copy_out(folder: Path, kept: Path) -> None:
    """What is in `kept` already stays. No process of the command may run. A directory above `MAX_KEPT_BYTES` is deleted."""
    left = MAX_KEPT_BYTES - size_of(kept)
    pending = [(folder, kept, 0)]
    try:
        while pending:
            source, target, level = pending.pop()
            for entry in _entries(source):
                found = entry.stat(follow_symlinks=False)
                left -= _NAME_BYTES + (found.st_size if stat.S_ISREG(found.st_mode) else 0)
                if left < 0 or level > MAX_LEVELS:
                    raise TooLarge
                to = target / entry.name
                if stat.S_ISDIR(found.st_mode):
                    to.mkdir(exist_ok=True)
                    pending.append((Path(entry.path), to, level + 1))
                else:
                    with contextlib.suppress(FileExistsError):
                        _copy(entry.path, to, found.st_mode)
    except TooLarge:
        delete(kept)
    except OSError as exc:  # a path that is too long, a full disk: the episode does not depend on it
        log.warning("agent's files are not all kept in %s: %s", kept, exc.strerror)


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    os.chmod(folder, 0o700)  # the command may have taken them from itself, and so from this process's user
    with os.scandir(folder) as entries:
        return list(entries)


def _copy(source: str, target: Path, mode: int) -> None:
    """Raises FileExistsError."""
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(mode):
        os.chmod(source, 0o600)
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if mode & stat.S_IXUSR else 0o666)
        with open(made, "wb") as copy, open(source, "rb") as file:
            shutil.copyfileobj(file, copy)


def bound(folder: Path) -> None:
    """Delete a kept directory that is too large."""
    if size_of(folder) > MAX_KEPT_BYTES:
        delete(folder)


def size_of(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def delete(folder: Path) -> None:
    log.warning("agent's directory deleted: %s has more than %d bytes", folder, MAX_KEPT_BYTES)
    shutil.rmtree(folder, ignore_errors=True)
