"""Hides this process's secrets from other processes of the machine. Linux only; no effect elsewhere.

The kernel exposes a program's initial arguments and environment: `/proc/PID/cmdline` to all users,
`/proc/PID/environ` and `/proc/PID/mem` to processes of the same user. `os.environ` is a copy: deleting from it hides nothing.

Afterwards
  * The secrets in `cmdline` are overwritten ("****"), and all values except those of `KEPT` are removed from `environ`.
  * Processes of the same user can neither read its memory and open files nor trace it. Root can: run untrusted code as
    another user, or isolated from this process.
"""

import ctypes
import logging
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = (b"TANDEM_CHILD_OF",)  # by which the launcher finds leftover processes of a child
_PR_SET_DUMPABLE = 4
_ARG_START = 45  # field of /proc/PID/stat after the name; then: end of arguments, start and end of environment


def conceal(secrets: Collection[str]) -> None:
    """Call after reading the configuration. Variables stay in `os.environ`, where libraries find them."""
    if sys.platform != "linux":
        log.warning(
            "other processes can read this process's arguments and environment: hiding them is not supported on %s",
            sys.platform,
        )
        return
    places = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ARG_START : _ARG_START + 4]
    args_start, args_end, env_start, env_end = map(int, places)
    for name, value in os.environb.items():
        os.putenv(name, value)  # the C library makes a copy and no longer needs the original
    for secret in sorted({os.fsencode(secret) for secret in secrets if secret}, key=len, reverse=True):
        arguments = _bytes(args_start, args_end)  # longest first: a secret may be part of another
        for match in re.finditer(re.escape(secret), arguments):
            ctypes.memset(args_start + match.start(), ord("*"), len(secret))
    for match in re.finditer(rb"(?:\A|\0)([^=\0]*)=([^\0]*)", _bytes(env_start, env_end)):
        if match[1] not in KEPT:
            ctypes.memset(env_start + match.start(2), 0, len(match[2]))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("processes of this user can read this one's memory: prctl: %s", os.strerror(ctypes.get_errno()))


def _bytes(start: int, end: int) -> bytes:
    return ctypes.string_at(start, end - start) if 0 < start < end else b""
