"""Runs a command that ends, with all its descendants, when its parent does: `python -I -S bound.py LIFELINE COMMAND ARGUMENT...`

A guard (`shared.processes.guard`) without a limit on its last wait: it ends with the command's status, and only when none of the
processes is left. So a device is free of them then. LIFELINE is a pipe that only the parent holds: it closes even if that is
killed. Standard library only.
"""

import math
import os
import sys

if __name__ == "__main__":  # isolated from every path, so that no folder of a user is imported from
    sys.path.append(os.path.abspath(__file__ + "/../../.."))

from shared.processes.concealment import conceal_arguments, conceal_environment
from shared.processes.guard import execute, keep


def main() -> None:
    conceal_arguments()
    conceal_environment()  # the command's, which it hands on: a key of an engine
    command = sys.argv[2:]
    keep(int(sys.argv[1]), lambda: None, lambda: execute(command), kill_s=math.inf)


if __name__ == "__main__":
    main()
