"""Where a chain of layers is cut into stages: the slowest stage is as fast as can be, and among such cuts the largest as small as
can be.

A step takes as long as its slowest stage for each row, so operations come first; parameters decide between cuts that are equally
fast. Without torch: a plan cuts as the trainer does.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from shared.errors import ConfigError

TRAINED_SHARE = (
    0.6  # of a row's tokens, those that the head is computed for: unknown before the first row; a third to nearly all
)


class Cost(NamedTuple):
    """Of a layer, or of all that a stage has. `operations`: products per token, forward and backward."""

    operations: float
    parameters: float

    def plus(self, other: "Cost") -> "Cost":
        return Cost(self.operations + other.operations, self.parameters + other.parameters)


class ModelCosts(NamedTuple):
    """`first`: what the first stage has before the layers; `last`: what the last one has after them."""

    layers: Sequence[Cost]
    first: Cost = Cost(0, 0)
    last: Cost = Cost(0, 0)


def stage_starts(costs: ModelCosts, stages: int) -> list[int]:
    """The first layer of each stage, and the number of layers.

    Raises ConfigError for fewer layers than stages.
    """
    layers, first, last = costs
    if len(layers) < stages:
        raise ConfigError(
            f"pp_size is {stages}, but the model has {len(layers)} layers; expected at most as many stages"
        )
    sums = list(accumulate(layers, Cost.plus, initial=Cost(0, 0)))

    def of_stage(stage: int, start: int, end: int) -> Cost:
        """`stage`: from 1 on."""
        ends = (first if stage == 1 else Cost(0, 0)).plus(last if stage == stages else Cost(0, 0))
        return Cost(
            *(later - earlier + more for later, earlier, more in zip(sums[end], sums[start], ends, strict=True))
        )

    def smallest(place: int, limit: float) -> tuple[float, list[int]]:
        """(largest stage, starts), by operations (0) or parameters (1); no stage has more operations than `limit`."""
        # best[s][n]: (largest stage, start of the last one) of the first n layers in s stages
        best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
        for stage in range(1, stages + 1):
            of_ends = {}
            for end in range(stage, len(layers) - (stages - stage) + 1):
                costs_of = {start: of_stage(stage, start, end) for start in best[-1] if start < end}
                cuts = [
                    (max(best[-1][start][0], cost[place]), start)
                    for start, cost in costs_of.items()
                    if cost.operations <= limit
                ]
                if cuts:
                    of_ends[end] = min(cuts)
            best.append(of_ends)
        starts = [len(layers)]
        for stage in range(stages, 0, -1):
            starts.append(best[stage][starts[-1]][1])
        return best[stages][len(layers)][0], starts[::-1]

    slowest, _ = smallest(0, float("inf"))
    return smallest(1, slowest)[1]
