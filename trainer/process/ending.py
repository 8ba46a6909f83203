"""How a training process ends after an error: status 1, and the cause in one line, the last one that it writes.

trainer: TandemError, or memory that is used up ─▶ one line          anything else ─▶ its traceback, then one line
trainer.launch: the same line once more, after what torch's launcher prints; torch hands it over in a file
"""

import logging
import os
import signal
import sys
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from shared.errors import TandemError
from shared.outside_text import clipped
from shared.redaction import redacted

if TYPE_CHECKING:  # torch takes seconds: not for --help, nor for a wrong setting
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

log = logging.getLogger("trainer")

MOST_CHARS = 1_000
NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
)  # in torch's RuntimeErrors, OutOfMemoryError too
MEMORY_ADVICE = "lower max_tokens_per_row or logprob_chunk, set activation_checkpointing, or shard over more processes"


class Ending:
    """A context around the work of a training process. An error within it ends the process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(exc, SystemExit) and isinstance(exc.__context__, TandemError):
            _hand_over(exc.__context__)  # it was printed: by `load_or_exit`, say
        if not isinstance(exc, Exception):
            return
        if not isinstance(exc, TandemError) and not is_out_of_memory(exc):
            traceback.print_exception(exc)
        _hand_over(exc)
        log.error("%s", cause_line(exc))
        end_process(1)


def end_process(status: int) -> NoReturn:
    """Flush output and exit at once: the last line of a `main` that used a `parallel_session`.

    Skips the interpreter's shutdown, which ends threads of gloo and of the launcher's store in no order and aborted about
    one launch of two processes in twenty ("terminate called without an active exception").
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def cause_line(exc: BaseException) -> str:
    """Type and message in one line, with the remedy where memory is used up."""
    text = clipped(redacted(" ".join(f"{type(exc).__name__}: {exc}".split())), MOST_CHARS)
    return f"{text} Remedy: {MEMORY_ADVICE}" if is_out_of_memory(exc) else text


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether a device or the host has no memory left."""
    if isinstance(exc, MemoryError):
        return True
    return isinstance(exc, RuntimeError) and any(words in str(exc).lower() for words in NO_MEMORY)


def of_launched(exc: "ChildFailedError", out_of_memory_kills: int) -> tuple[int, str]:
    """(exit status, cause in one line) of the process that failed first. `out_of_memory_kills`: of the kernel, meanwhile."""
    rank, failure = exc.get_first_failure()
    how = f"ended with status {failure.exitcode}"
    if failure.exitcode < 0:
        how = f"was killed by {signal.Signals(-failure.exitcode).name}"
        if -failure.exitcode == signal.SIGKILL and out_of_memory_kills:
            how += f", by the kernel, since the machine's memory was used up: {MEMORY_ADVICE}"
    reported = _handed_over(failure)
    status = failure.exitcode if 0 < failure.exitcode < 128 else 1
    return status, f"rank {rank} (pid {failure.pid}) {how}{f': {reported}' if reported else ''}"


def _hand_over(exc: BaseException) -> None:
    """To torch's launcher, if one started this process."""
    if os.environ.get("TORCHELASTIC_ERROR_FILE"):
        from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

        ErrorHandler().record_exception(RuntimeError(cause_line(exc)))


def _handed_over(failure: "ProcessFailure") -> str:
    data = failure.error_file_data
    message = data.get("message") if isinstance(data, dict) else None
    text = message.get("message") if isinstance(message, dict) else None
    return text.removeprefix("RuntimeError: ") if isinstance(text, str) else ""
