"""Whom the freshness rule selects: the episodes that are trained against all that it decided on, by duration and by length.

A rule that sets groups aside by staleness sets slow ones aside, and what only long episodes teach is never learned. The ratio of
the means says so in one number: 1 where staleness sets nothing aside, 0.6 where the trained episodes are 40 % shorter than all.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from trainer.data.groups import Group

WINDOW_STEPS = 50  # long enough for the mean of a long tail, short enough to see a change


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over groups."""

    groups: int = 0
    episodes: int = 0
    tokens: int = 0  # sampled
    duration_s: float = 0.0

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Tally":
        return cls(
            len(groups),
            sum(len(group.records) for group in groups),
            sum(group.num_sampled for group in groups),
            sum(group.duration_s for group in groups),
        )

    @classmethod
    def sum(cls, tallies: Iterable["Tally"]) -> "Tally":
        several = list(tallies)
        return cls(*(sum(getattr(tally, field.name) for tally in several) for field in fields(cls)))


class Selection:
    """Of the last `WINDOW_STEPS` steps of this process."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Tally, Tally]] = deque(maxlen=WINDOW_STEPS)

    def add(self, trained: Sequence[Group], set_aside: Sequence[Group]) -> dict[str, float]:
        """One more step: what it trains and what it set aside. The metrics of the window; a ratio of nothing is left out."""
        self._steps.append((Tally.of(trained), Tally.of(set_aside)))
        taken, aside = (Tally.sum(column) for column in zip(*self._steps, strict=True))
        every = Tally.sum((taken, aside))
        metrics = {"selection/set_aside_fraction": aside.groups / max(every.groups, 1)}
        for name, unit in (("duration", "_s"), ("tokens", "")):
            of_all = getattr(every, f"{name}{unit}") / max(every.episodes, 1)
            of_trained = getattr(taken, f"{name}{unit}") / max(taken.episodes, 1)
            metrics |= {f"selection/{name}_all{unit}": of_all, f"selection/{name}_trained{unit}": of_trained}
            if of_all > 0:
                metrics[f"selection/{name}_ratio"] = of_trained / of_all
        return metrics
