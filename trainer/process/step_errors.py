"""A bug that a step meets ends the trainer with status 1: ranks in the middle of a step cannot agree to leave a part of it out.

The error names the step and its groups. Nothing of the step counts: its data is free again with the next start. What one group
meets while it is read, before it belongs to a step, sets that group aside instead (`trainer/data/reading.py`).
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shared.errors import TandemError
from shared.outside_text import clipped
from shared.unforeseen import bug_of
from trainer.process.ending import is_out_of_memory

log = logging.getLogger(__name__)

MOST_NAMED_CHARS = 600


class StepFailed(TandemError):
    """Something raised what nobody expected while a step was prepared or computed."""


@contextmanager
def named_in_errors(step: int, tasks: Sequence[str] = ()) -> Iterator[None]:
    """Raises StepFailed in place of any other error than the project's own and the lack of memory (`ending.py`)."""
    try:
        yield
    except Exception as exc:  # raised again, with the step and its groups
        if isinstance(exc, TandemError) or is_out_of_memory(exc):
            raise
        bug = bug_of(exc)
        log.error("step %d met a bug\n%s", step, bug.traceback)
        groups = f"; its groups: {clipped(', '.join(tasks), MOST_NAMED_CHARS)}" if tasks else ""
        raise StepFailed(
            f"step {step}: {bug.error}{groups}. Nothing of the step counts; if every start meets this, set status of the group's "
            "record_data to dropped, and report it"
        ) from exc
