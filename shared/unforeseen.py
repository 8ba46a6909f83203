"""The second line behind the boundary: what nobody foresaw fails the piece of work that met it, counted, and never the process.

    an episode, a group's settlement ─▶ raises what nobody expected ─▶ `bug_of`: one line, and a bounded traceback
        ─▶ the record or the task has both ─▶ `Bugs`: counted, an alarm ─▶ the process goes on

Of the process itself are its cancellation, and a database that does not answer or refuses its user: these end it.
"""

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo.errors import PyMongoError

from shared.errors import OwnCodeFailed, StoreRefused, StoreUnavailable
from shared.outside_text import clipped, error_text
from shared.redaction import redacted
from shared.user_code.frames import cause_of, place_of, told, user_code_error

log = logging.getLogger(__name__)

OF_THE_PROCESS = (KeyboardInterrupt, GeneratorExit, StoreUnavailable, StoreRefused)
# What says nothing of the data that was read: a disk, memory, the server, a loop that is closed.
OF_THE_MACHINE = (OSError, MemoryError, PyMongoError, futures.CancelledError)
MAX_TRACEBACK_CHARS = 8_000
MOST_FRAMES = 30  # of each exception: the innermost
MOST_CHAINED = 4  # exceptions of a chain: the last
MAX_MESSAGE_CHARS = 500
_ROOT = f"{Path(__file__).resolve().parents[1]}/"
_OURS = tuple(f"{_ROOT}{name}/" for name in ("sampler", "shared", "trainer"))


@dataclass(frozen=True, slots=True)
class Bug:
    """`error`: one line with the place. `traceback`: the innermost frames, without secrets and of bounded length. `is_own`: a
    user's own code raised it, and `error` names its line."""

    error: str
    traceback: str
    is_own: bool = False


def is_of_the_process(exc: BaseException) -> bool:
    """Whether it, or one of a group, has to end the process. A cancellation that nobody asked of this task has not: code within
    it awaited what was cancelled."""
    if isinstance(exc, BaseExceptionGroup):
        return any(map(is_of_the_process, exc.exceptions))
    if isinstance(exc, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(exc, OF_THE_PROCESS)


def bug_of(exc: BaseException, home: Any = None) -> Bug:
    """`home`: the user's class or function that ran, if there is one."""
    cause = cause_of(exc)
    own = cause if isinstance(cause, OwnCodeFailed) else None if home is None else user_code_error(cause, home)
    around = [] if cause is exc else traceback.format_tb(exc.__traceback__, limit=-MOST_FRAMES)  # of its group
    line = told(cause) if own is None else error_text(own).removeprefix(f"{OwnCodeFailed.__name__}: ")
    is_own = own is not None or bool(place_of(cause))
    frames = traceback.extract_tb(cause.__traceback__)
    if not is_own and frames:
        at = next((frame for frame in reversed(frames) if frame.filename.startswith(_OURS)), frames[-1])
        line = f"{line}; at {at.filename.removeprefix(_ROOT)}:{at.lineno}, in {at.name}"
    return Bug(redacted(line), _bounded_traceback(cause, "".join(around)), is_own)


def _bounded_traceback(exc: BaseException, around: str) -> str:
    chained = list(_chain(exc))[:MOST_CHAINED]
    parts = [
        "".join(traceback.format_tb(one.__traceback__, limit=-MOST_FRAMES)) + error_text(one, MAX_MESSAGE_CHARS)
        for one in reversed(chained)
    ]
    return clipped(redacted(around + "\n\n".join(parts)), MAX_TRACEBACK_CHARS).replace("\0", "�")


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """It, then what it was raised from."""
    seen: set[int] = set()
    one: BaseException | None = exc
    while one is not None and id(one) not in seen:
        yield one
        seen.add(id(one))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


class Bugs:
    """What one process met. `count`: the pieces of work that failed so."""

    def __init__(self) -> None:
        self._kinds: Counter[str] = Counter()
        self._last = ""

    @property
    def count(self) -> int:
        return self._kinds.total()

    def met(self, kind: str, which: str, bug: Bug) -> None:
        """`kind`: such as `episode`; `which`: its id."""
        self._kinds[kind] += 1
        self._last = f"{kind} {which}: {bug.error}"
        # The user's line says enough of a mistake in their code.
        log.error("bug met %s%s", self._last, "" if bug.is_own else f"\n{bug.traceback}")

    def alarms(self) -> list[str]:
        if not self._kinds:
            return []
        kinds = ", ".join(f"{n} × {kind}" for kind, n in sorted(self._kinds.items()))
        return [
            f"unforeseen errors: {kinds} failed, and all others continue. The last: {self._last} "
            "(`tandem show RUN RECORD` prints the traceback)"
        ]
