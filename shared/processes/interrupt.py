"""What Ctrl-C does to a command that has nothing to finish: it ends at once, with a word and not with a traceback."""

import sys
from collections.abc import Callable

INTERRUPTED = 130  # exit status, by the shells' convention: 128 + SIGINT


def run_command(main: Callable[[], int | None]) -> None:
    """Call `main`, and exit with its status unless that is 0. Ctrl-C exits with `INTERRUPTED`."""
    try:
        status = main()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        status = INTERRUPTED
    if status:
        sys.exit(status)
