"""Files below a folder, opened so that no symbolic link and no `..` leads out of it, also if the tree changes meanwhile."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath

from sampler.mcp_docker.tools.serving import ToolRefusal


class BeneathFolder:
    """Paths are relative to it. Symbolic links are listed, and never followed."""

    def __init__(self, folder: str) -> None:
        self.root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, path: str, flags: int, make_folders: bool = False) -> int:
        """A descriptor of a regular file or a folder. Raises ToolRefusal."""
        parts = _parts(path)
        folder = os.dup(self.root)
        try:
            for part in parts[:-1]:
                deeper = self._folder(folder, part, path, make_folders)
                os.close(folder)
                folder = deeper
            opened = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
        except OSError as exc:
            raise ToolRefusal(f"{path}: {_reason(exc)}") from exc
        finally:
            os.close(folder)
        if not stat.S_ISREG(mode := os.fstat(opened).st_mode) and not stat.S_ISDIR(mode):
            os.close(opened)
            raise ToolRefusal(f"{path}: is not a regular file or a folder")
        return opened

    def walk(self, path: str, most_levels: int) -> Iterator[tuple[str, os.stat_result]]:
        """Entries below, folders before what is in them, sorted by name."""
        opened = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield from self._walk(opened, "" if path in ("", ".") else path.rstrip("/") + "/", most_levels)
        finally:
            os.close(opened)

    def _walk(self, folder: int, prefix: str, levels: int) -> Iterator[tuple[str, os.stat_result]]:
        for name in sorted(os.listdir(folder)):
            try:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                yield prefix + name, status
                if levels > 1 and stat.S_ISDIR(status.st_mode):
                    deeper = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                    try:
                        yield from self._walk(deeper, f"{prefix}{name}/", levels - 1)
                    finally:
                        os.close(deeper)
            except OSError:  # changed meanwhile, or closed to this user
                continue

    def _folder(self, folder: int, name: str, path: str, make: bool) -> int:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=folder)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _parts(path: str) -> tuple[str, ...]:
    if "\0" in path:
        raise ToolRefusal("a path cannot have a NUL character")
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ToolRefusal(f"{path}: expected a path relative to the workspace, without ..")
    return pure.parts or (".",)


def _reason(exc: OSError) -> str:
    if exc.errno in (errno.ELOOP, errno.EMLINK):
        return "is a symbolic link, which is not followed"
    if exc.errno == errno.ENOTDIR:
        return "is below a file or a symbolic link; expected a folder"
    return exc.strerror or str(exc)
