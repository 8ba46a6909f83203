"""Whether the steps of a run moved its weights at all: a run in which every step was skipped has failed."""

import json
from pathlib import Path

from shared.errors import DataError
from trainer.process.parallel import Parallel


class Moved:
    """Every rank makes the same calls. `history`: the metrics.jsonl of the steps before this start's first one."""

    def __init__(self, history: Path, steps_done: int, parallel: Parallel) -> None:
        skipped, moved = _counted(history, steps_done) if parallel.is_main else (0, False)
        self._skipped, self._moved = parallel.broadcast_object((skipped, moved))
        self._why: str | None = None  # of the first skipped step of this start

    def note(self, step: int, *, skipped: bool, not_finite: str | None) -> None:
        """`not_finite`: why the gradient was not."""
        self._skipped += skipped
        self._moved |= not skipped
        if skipped and self._why is None:
            self._why = f"step {step}: {not_finite or 'nothing was there to train'}"

    def check(self) -> None:
        """At the end. Raises DataError if there were steps and each was skipped."""
        if self._skipped and not self._moved:
            raise DataError(
                f"every step was skipped ({self._skipped}), so nothing was learned and the weights are those of the start: "
                f"{self._why or 'the log of the start that took the steps says why'}"
            )


def _counted(history: Path, steps_done: int) -> tuple[int, bool]:
    """(skipped steps up to `steps_done`, whether any step moved the weights)."""
    if not steps_done or not history.is_file():
        return 0, steps_done > 0  # without the file nothing is known of them
    skipped, moved = 0, False
    for line in history.read_text(encoding="utf-8").splitlines():
        metrics = json.loads(line)
        if metrics["step"] <= steps_done:
            skipped += metrics.get("learner/skipped_steps") == 1
            moved |= metrics.get("learner/skipped_steps") != 1
    return skipped, moved
