"""Hides this process's secrets from other processes of the machine. Linux only; no effect elsewhere.

The kernel exposes a program's initial arguments and environment: `/proc/PID/cmdline` to all users,
`/proc/PID/environ` and `/proc/PID/mem` to processes of the same user. `os.environ` is a copy: deleting from it hides nothing.

Afterwards
  * The secrets in `cmdline` are overwritten ("****"), and all values except those of `KEPT` are removed from `environ`.
  * Processes of the same user can neither read its memory and open files nor trace it. Root can: run untrusted code as
    another user, or isolated from this process.
"""

import ctypes
import os
import re
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

KEPT = (b"TANDEM_CHILD_OF",)  # by which the launcher finds leftover processes of a child
SECRET_FLAG = re.compile(
    rb"\A--(?:[\w-]+\.)*(?:[\w-]*db_connection_string|data_db|[\w-]*token|api[_-]key|header)(=|\Z)"
)
_PR_SET_DUMPABLE = 4
_ARG_START = 45  # field of /proc/PID/stat after the name; then: end of arguments, start and end of environment


def conceal(secrets: Collection[str]) -> None:
    """Call after reading the configuration. Variables stay in `os.environ`, where libraries find them."""
    if sys.platform != "linux":
        _log().warning(
            "other processes can read this process's arguments and environment: hiding them is not supported on %s",
            sys.platform,
        )
        return
    conceal_environment()
    args_start, args_end, *_ = _places()
    for secret in sorted({os.fsencode(secret) for secret in secrets if secret}, key=len, reverse=True):
        arguments = _bytes(args_start, args_end)  # longest first: a secret may be part of another
        for match in re.finditer(re.escape(secret), arguments):
            ctypes.memset(args_start + match.start(), ord("*"), len(secret))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        _log().warning("processes of this user can read this one's memory: prctl: %s", os.strerror(ctypes.get_errno()))


def conceal_environment() -> None:
    """Remove all values but those of `KEPT` from `/proc/PID/environ`, before the configuration is read."""
    if sys.platform != "linux":
        return
    *_, env_start, env_end = _places()
    for name, value in os.environb.items():
        os.putenv(name, value)  # the C library makes a copy and no longer needs the original
    for match in re.finditer(rb"(?:\A|\0)([^=\0]*)=([^\0]*)", _bytes(env_start, env_end)):
        if match[1] not in KEPT:
            ctypes.memset(env_start + match.start(2), 0, len(match[2]))


def conceal_arguments() -> None:
    """Overwrite the values of flags that take a secret in `/proc/PID/cmdline`, before the configuration is read."""
    if sys.platform != "linux":
        return
    at, end, *_ = _places()
    follows = False
    for word in _bytes(at, end).split(b"\0"):
        flag = SECRET_FLAG.match(word)
        if follows and not word.startswith(b"--"):
            ctypes.memset(at, ord("*"), len(word))
        elif flag and flag[1]:
            ctypes.memset(at + flag.end(), ord("*"), len(word) - flag.end())
        follows = flag is not None and not flag[1]
        at += len(word) + 1


def _places() -> tuple[int, ...]:
    """Start and end of this process's arguments, then of its environment."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return tuple(map(int, fields[_ARG_START : _ARG_START + 4]))


def _log() -> "logging.Logger":
    import logging  # takes 8 ms: every program imports this module first

    return logging.getLogger(__name__)


def _bytes(start: int, end: int) -> bytes:
    return ctypes.string_at(start, end - start) if 0 < start < end else b""
