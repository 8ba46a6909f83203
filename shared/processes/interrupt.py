"""Ctrl-C for commands without cleanup: exits immediately with a message instead of a traceback."""

import sys
from collections.abc import Callable

INTERRUPTED = 130  # exit status, by the shells' convention: 128 + SIGINT


def run_command(main: Callable[[], int | None]) -> None:
    """Call `main` and exit with its status if not 0. Ctrl-C exits with `INTERRUPTED`."""
    try:
        status = main()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        status = INTERRUPTED
    if status:
        sys.exit(status)
