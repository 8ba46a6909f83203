"""The staleness of a token. `StaleData` of the settings says what becomes of one that is too stale.

Staleness is the number of optimizer steps between the weights that sampled a token and the weights that the step starts from.
It is measured when the token's group is taken, never before. Weights may change in the middle of a reply, so staleness belongs
to a token, not to its reply, record or group.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Staleness:
    """At one step. `steps_behind` is by weight version; None: the versions are another run's, and every token has staleness 0.

    `limit`: tokens beyond it have no loss; None: all have theirs.
    """

    steps_behind: Mapping[int, int] | None
    limit: int | None = None

    def of(self, version: int) -> int:
        return 0 if self.steps_behind is None else self.steps_behind[version]

    def too_stale(self, version: int) -> bool:
        return self.limit is not None and self.of(version) > self.limit
