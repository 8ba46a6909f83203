"""How old a token is, and what becomes of one that is too old.

The age of a token is the number of optimizer steps between the weights that sampled it and the weights that the step starts
from; it is measured when the token's group is taken, never before. A reply may go on while weights change, so an age is a
token's own: not its reply's, not its record's, not its group's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class StaleData(StrEnum):
    KEEP = "keep"  # everything trains, with its importance weights; nothing is set aside and nothing waits for another
    WAIT = "wait"  # a step takes the oldest tasks' groups and waits for those still played: ages are bounded, steps take longer
    MASK = "mask"  # tokens beyond max_staleness have no loss: slow episodes lose their first turns, or everything
    DROP = "drop"  # a group with one token beyond max_staleness is set aside: slow groups are never trained


@dataclass(frozen=True, slots=True)
class Ages:
    """At one step. `lags` is {weight version: steps behind}; None: another run's versions, which say nothing here, have age 0.

    `max_age`: tokens beyond it have no loss; None: all have theirs.
    """

    lags: Mapping[int, int] | None
    max_age: int | None = None

    def of(self, version: int) -> int:
        return 0 if self.lags is None else self.lags[version]

    def too_old(self, version: int) -> bool:
        return self.max_age is not None and self.of(version) > self.max_age
