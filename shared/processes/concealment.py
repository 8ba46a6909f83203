"""What other processes of a machine can read of this one: none of its secrets. Linux; elsewhere nothing is done.

The kernel shows the memory in which a program got its arguments and environment: `/proc/PID/cmdline` to everybody,
`/proc/PID/environ` and `/proc/PID/mem` to processes of the same user. `os.environ` is a copy: deleting from it hides nothing.

What holds afterwards
  * The secrets are struck out of `cmdline` ("****"), and every value but those in `KEPT` is gone from `environ`, for any reader.
  * Processes of the same user can neither read its memory and open files nor trace it. Root can: run what is not trusted as
    another user, or where it does not see this process.
"""

import ctypes
import logging
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = (b"TANDEM_CHILD_OF",)  # by which the launcher finds what is left of a child
_PR_SET_DUMPABLE = 4
_ARG_START = 45  # fields of /proc/PID/stat behind the name: arguments' start and end, environment's start and end


def conceal(secrets: Collection[str]) -> None:
    """Call it when the configuration was read. Variables stay in `os.environ`, and libraries still find them."""
    if sys.platform != "linux":
        log.warning(
            "what this process was started with can be read by others: nothing is known to hide it on %s", sys.platform
        )
        return
    places = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ARG_START : _ARG_START + 4]
    args_start, args_end, env_start, env_end = map(int, places)
    for name, value in os.environb.items():
        os.putenv(name, value)  # copied by the C library, so that nothing needs the first copy any more
    for secret in sorted({os.fsencode(secret) for secret in secrets if secret}, key=len, reverse=True):
        arguments = _bytes(args_start, args_end)  # the longest first: a secret may be a part of another
        for match in re.finditer(re.escape(secret), arguments):
            ctypes.memset(args_start + match.start(), ord("*"), len(secret))
    for match in re.finditer(rb"(?:\A|\0)([^=\0]*)=([^\0]*)", _bytes(env_start, env_end)):
        if match[1] not in KEPT:
            ctypes.memset(env_start + match.start(2), 0, len(match[2]))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("processes of this user can read this one's memory: prctl: %s", os.strerror(ctypes.get_errno()))


def _bytes(start: int, end: int) -> bytes:
    return ctypes.string_at(start, end - start) if 0 < start < end else b""
