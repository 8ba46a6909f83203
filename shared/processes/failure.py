"""Why a process ends, as a line for its worker document: the error that ends it, without secrets and of bounded length."""

import sys
from collections.abc import Iterator

from shared.outside_text import clipped, error_text
from shared.redaction import redacted

MAX_FAILURE_CHARS = 1_000
MOST_ERRORS = 3  # of a group


def failure_now() -> str | None:
    """Call in a `finally`: the error that is being handled. None: there is none, or it only stops the process (Ctrl-C)."""
    exc = sys.exception()
    if not isinstance(exc, Exception):
        return None
    lines = list(dict.fromkeys(error_text(one, MAX_FAILURE_CHARS) for one in _one_by_one(exc)))
    return clipped(redacted("; ".join(lines[:MOST_ERRORS])), MAX_FAILURE_CHARS)


def _one_by_one(exc: BaseException) -> Iterator[BaseException]:
    if isinstance(exc, BaseExceptionGroup):
        for one in exc.exceptions:
            yield from _one_by_one(one)
    else:
        yield exc
