"""Groups without an advantage: their episodes have equal rewards, so a policy gradient learns nothing from them.

    every group of a step is one   no step: they are set aside, nothing is trained or published, and others are waited for
    some are                       trained along (their gradient is 0); `max_resampled_groups` sets so many aside for a step, and
                                   others take their place: DAPO's dynamic sampling (arXiv 2503.14476), with a bound

What is set aside is `dropped` with its reason: the viewer's ledger compares it with what is trained, by source and difficulty.
"""

from collections.abc import Mapping

from trainer.data.reading import LoadedGroup
from trainer.settings.config import TrainerConfig

NO_STEP = "equal rewards in every group of the step: no advantage, so no step"
RESAMPLED = "equal rewards: replaced by another group (max_resampled_groups)"


class EqualGroups:
    """Of one trainer: what its steps set aside. Every rank has one, which says the same."""

    def __init__(self, config: TrainerConfig) -> None:
        self._needs_advantage = config.data.drop_zero_advantage  # else other terms of the loss have a gradient
        self._most_resampled = config.data.max_resampled_groups
        self._step = 0
        self._resampled = self._skipped = 0  # of the step
        self.batches_skipped = 0  # of this process

    def to_set_aside(self, step: int, has_advantage: Mapping[str, bool]) -> dict[str, str]:
        """{task: reason} of the step's groups that it is not taken with; `has_advantage`: of every one, oldest first."""
        if step != self._step:
            self._step, self._resampled, self._skipped = step, 0, 0
        equal = [task for task, has in has_advantage.items() if not has]
        if equal and len(equal) == len(has_advantage) and self._needs_advantage:
            self._skipped += 1
            self.batches_skipped += 1
            return dict.fromkeys(equal, NO_STEP)
        replaced = equal[: self._most_resampled - self._resampled]
        self._resampled += len(replaced)
        return dict.fromkeys(replaced, RESAMPLED)

    def metrics(self) -> dict[str, float]:
        """Of the step that is taken now."""
        return {"data/skipped_batches": float(self._skipped), "data/resampled_groups": float(self._resampled)}


def has_advantage(group: LoadedGroup) -> bool:
    return any(one.advantage != 0 for data in group.data for one in data.dispatches)
