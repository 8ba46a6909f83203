"""Landlock: the files that a process may read and write, and the processes that it may signal (see landlock(7)).

Needs no privilege, and Linux 5.13; signals and abstract sockets 6.12. A process cannot leave it, nor can its descendants.
Standard library only: it runs in the warden.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from functools import cache

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # on every architecture
_VERSION, _PATH_BENEATH = 1, 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # all others are of folders
_DEVICES = 1 << 6 | 1 << 11  # making them
SCOPE_ABI = 6  # from which on signals and abstract sockets are kept inside
_SCOPE = 1 << 0 | 1 << 1

# Without which common programs do not start. No other part of /proc and /dev is opened.
HARMLESS = ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")
DEVICES = ("null", "zero", "full", "random", "urandom")


@cache
def abi() -> int:
    """The kernel's version of Landlock; 0: it has none."""
    return max(0, int(_libc().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """This process and its descendants open nothing else from here on. No effect where the kernel lacks Landlock."""
    made = rules(readable, writable)
    if made is not None:
        enforce(made)
        os.close(made)


def enforce(made: int) -> None:
    """Of this process and its descendants. `made` may be used for others, too."""
    _called(_RESTRICT, made, 0)


def rules(readable: Iterable[str], writable: Iterable[str]) -> int | None:
    """A descriptor of rules; None: the kernel lacks Landlock."""
    version = abi()
    if version == 0:
        return None
    everything = (1 << 13) - 1 | (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)
    everything |= 1 << 15 if version >= 5 else 0
    attributes = struct.pack("=QQQ", everything, 0, _SCOPE if version >= SCOPE_ABI else 0)
    attributes = attributes[: 8 if version < 4 else 16 if version < SCOPE_ABI else 24]
    made = _called(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path in (*readable, *(f"/proc/{name}" for name in HARMLESS)):
        _allow(made, path, everything & _READ)
    for path in (*writable, *(f"/dev/{name}" for name in DEVICES)):
        _allow(made, path, everything & ~_DEVICES)
    return made


def _allow(made: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            access &= _OF_FILES
        _called(_ADD_RULE, made, _PATH_BENEATH, struct.pack("=Qi", access, opened), 0)
    finally:
        os.close(opened)


def _called(*arguments: object) -> int:
    result = int(_libc().syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
