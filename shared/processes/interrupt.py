"""How every program begins and ends: before its imports, which take up to ten seconds, and around its `main`.

    if __name__ == "__main__":
        begin_program()          # a command: begin_program(is_command=True)

    import torch                 # from here on Ctrl-C is one line and status 130
    ...
    if __name__ == "__main__":
        run_command(main)

`begin_program` also hides what the environment and the arguments contain of secrets, and makes the output usable. Of the signals
that end a program, one that is ignored stays ignored. Imports nothing that takes time.
"""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130  # exit status, by the shells' convention: 128 + SIGINT
FAILED = 1


def begin_program(*, is_command: bool = False) -> None:
    """Call before every import that takes time. `is_command`: its output is its result, so a lost one is a failure."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end_at_once)
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, {signal.SIGINT}
    )  # held back while the interpreter starts (`scripts/*.sh`)
    from shared.processes.concealment import conceal_arguments, conceal_environment
    from shared.processes.output import usable_output, usable_size

    usable_size(os.environ)
    _reach_loopback_directly()
    usable_output(is_command)
    conceal_arguments()
    conceal_environment()


def run_command(main: Callable[[], int | None]) -> None:
    """Call `main` and exit with its status if not 0. Ctrl-C exits with `INTERRUPTED`, a lost output with `FAILED`."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    from shared.processes.output import OutputLost

    try:
        status = main()
    except KeyboardInterrupt:
        _end_quietly_from_now_on()
        sys.stderr.write("\ninterrupted\n")
        status = INTERRUPTED
    except OutputLost as exc:
        sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {exc}\n")
        status = FAILED
    finally:
        _end_quietly_from_now_on()
    if status:
        sys.exit(status)


def _reach_loopback_directly() -> None:
    if any(name.lower().endswith("_proxy") for name in os.environ):
        from shared.outgoing import loopback_goes_direct

        loopback_goes_direct(os.environ)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"\ninterrupted\n")
    finally:  # a closed terminal too
        os._exit(INTERRUPTED)


def _end_quietly_from_now_on() -> None:
    """What is left, such as ending the interpreter, is not interrupted with a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
