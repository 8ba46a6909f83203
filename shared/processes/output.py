"""Standard output and standard error of a program: they write on any terminal, and cost nothing where nobody reads them.

A character that the terminal's encoding lacks is replaced. What cannot be written (a closed terminal, a pipe without a reader, a
full disk) is dropped; where no later write could succeed either, the descriptor leads to /dev/null from then on. A command
learns of it (`OutputLost`), since its output is its result; a service does not. Standard error never raises.
"""

import contextlib
import errno
import io
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any

MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # of a log on a full disk


class OutputLost(Exception):
    """The output of a command could not be written. No OSError: the caller of a `print` cannot answer it."""


def usable_output(is_command: bool) -> None:
    """Replace `sys.stdout` and `sys.stderr` of this process. Descriptors that are closed become /dev/null."""
    _open_standard_descriptors()
    sys.stdout = _usable(sys.stdout, tells_loss=is_command)
    sys.stderr = _usable(sys.stderr, tells_loss=False)


def usable_size(environment: MutableMapping[str, str]) -> None:
    """Remove a terminal's size that is no size: with COLUMNS=0, as of some containers and of cron, nothing would be printed."""
    for name in ("COLUMNS", "LINES"):
        if name in environment and not re.fullmatch(r"0*[1-9][0-9]{0,5}", environment[name], re.ASCII):
            del environment[name]


class UsableOutput(io.TextIOWrapper):
    """A text stream over a descriptor; `tells_loss`: the first write that fails raises OutputLost."""

    def __init__(self, stream: io.TextIOWrapper, tells_loss: bool) -> None:
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors="replace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._given = stream  # closes the descriptor when it is collected
        self._tells_loss = tells_loss

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as exc:
            self._lose(exc)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as exc:
            self._lose(exc)

    def _lose(self, exc: OSError) -> None:
        with contextlib.suppress(OSError):
            if isinstance(exc, BlockingIOError):  # a reader that is slow, of a descriptor that another process changed
                os.set_blocking(self.fileno(), True)
                return
            if self._tells_loss or exc.errno not in MAY_PASS:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
        if self._tells_loss:
            self._tells_loss = False
            raise OutputLost(f"its output cannot be written: {exc.strerror or exc}") from exc


def _usable(stream: Any, tells_loss: bool) -> Any:
    """A stream that is no terminal, pipe or file (a test's, a notebook's) stays as it is."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, UsableOutput):
        return stream
    try:
        stream.flush()
        stream.fileno()
    except (OSError, ValueError):
        return stream
    return UsableOutput(stream, tells_loss)


def _open_standard_descriptors() -> None:
    """A file or a socket of the program would get a free number of the first three, and what it prints."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            if number == 1:
                sys.stdout = os.fdopen(null, "w", encoding="utf-8", errors="replace", closefd=False)
            elif number == 2:
                sys.stderr = os.fdopen(null, "w", encoding="utf-8", errors="replace", closefd=False)
