"""Runs a command that ends with its parent: `python -I -S bound.py PARENT_PID COMMAND ARGUMENT...`

The kernel kills the command if its parent dies, also by SIGKILL. The command keeps this process's pid. Outside of Linux
it just runs. Standard library only.
"""

import ctypes
import os
import signal
import sys

_PARENT_DIES = 1  # PR_SET_PDEATHSIG


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DIES, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the kernel was asked
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
