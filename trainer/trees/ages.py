"""How old a token is, and what becomes of one that is too old.

An age is the number of optimizer steps between the weights that sampled a token and the weights that the step starts from. A
group is as old as its oldest token that has a loss; it is measured when the group is taken, never before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class StaleData(StrEnum):
    DROP = "drop"  # a group with one token beyond max_staleness is set aside, kept and counted
    MASK = "mask"  # tokens beyond max_staleness have no loss and keep their place in denominators; the rest of the group trains
    KEEP = "keep"  # everything trains


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

    def of_group(self, versions: Iterable[int]) -> int:
        """Of tokens that these versions sampled, as far as they have a loss; 0 without any."""
        return max((self.of(v) for v in versions if not self.too_old(v)), default=0)
