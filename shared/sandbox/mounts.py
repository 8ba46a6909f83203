"""Makes folders below a closed folder (such as /root) reachable for another user, in this process's own mount namespace.

A Python installation often lies in a home folder that only its owner may enter. A session's user then finds there an empty
folder in which only what it needs is mounted, read-only. Needs root. Standard library only: it runs in the warden's child.
"""

import ctypes
import os
import stat
from collections.abc import Sequence

_CLONE_NEWNS = 0x00020000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18


def show(readable: Sequence[str], writable: Sequence[str], user: int) -> None:
    """No effect if the user can reach all of them. Raises OSError."""
    paths = {os.path.realpath(path): path in writable for path in (*readable, *writable) if os.path.exists(path)}
    covers = {closed for path in paths if (closed := _closed(path, user))}
    if not covers:
        return
    _called("unshare", _CLONE_NEWNS)
    _mount("none", "/", _REC | _PRIVATE)
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in sorted(paths)}
    for cover in covers:
        _mount("none", cover, _NOSUID | _NODEV, kind=b"tmpfs", options=b"mode=755,size=64k")
    for path, source in opened.items():
        if any(_inside(path, cover) for cover in covers) and not os.path.lexists(path):
            _place(path, source)
            _mount(f"/proc/self/fd/{source}", path, _BIND | _REC)
            _mount("none", path, _REMOUNT | _BIND | _NOSUID | _NODEV | (0 if paths[path] else _RDONLY))
    for cover in covers:
        _mount("none", cover, _REMOUNT | _RDONLY | _NOSUID | _NODEV)
    for source in opened.values():
        os.close(source)


def _closed(path: str, user: int) -> str | None:
    """The first folder above `path` that the user may not enter."""
    parts = path.strip("/").split("/")[:-1]
    for end in range(1, len(parts) + 1):
        folder = "/" + "/".join(parts[:end])
        status = os.stat(folder)
        if not status.st_mode & stat.S_IXOTH and status.st_uid != user:
            return folder
    return None


def _place(path: str, source: int) -> None:
    """An empty folder or file to mount on."""
    if stat.S_ISDIR(os.fstat(source).st_mode):
        os.makedirs(path)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o444))


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def _mount(source: str, target: str, flags: int, kind: bytes | None = None, options: bytes | None = None) -> None:
    _called("mount", source.encode(), os.fsencode(target), kind, ctypes.c_ulong(flags), options)


def _called(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments[:2]}: {os.strerror(number)}")
