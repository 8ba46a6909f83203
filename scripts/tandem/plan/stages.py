"""The stages of a planned trainer: the trainer's own cut, from a model's shape."""

from functools import cache
from itertools import pairwise

from shared.weights.stage_starts import TRAINED_SHARE, Cost, ModelCosts, stage_starts
from tandem.plan.models import Matrix, ModelShape


@cache
def layers_of_stages(shape: ModelShape, stages: int, *, learned: bool = True) -> tuple[int, ...]:
    """Numbers of layers. `learned`: its own weights are trained, not adapters. Raises ConfigError for too few layers."""
    starts = stage_starts(costs_of(shape, learned=learned), stages)
    return tuple(end - start for start, end in pairwise(starts))


def costs_of(shape: ModelShape, *, learned: bool = True) -> ModelCosts:
    """As `stage_costs` in `trainer/modeling/stage_costs.py` counts them, without those of adapters."""
    passes, head = 2 + learned, shape.vocabulary * shape.hidden
    products = sum(_products(shape, matrix) for matrix in shape.layer_matrices())
    return ModelCosts(
        [Cost(passes * products, shape.layer_numbers)] * shape.layers,
        first=Cost(0, head),
        last=Cost(TRAINED_SHARE * (passes + 1) * head, head + shape.hidden),
    )


def _products(shape: ModelShape, matrix: Matrix) -> float:
    """Per token: of experts those that it gets, of norms none."""
    share = shape.experts_per_token / shape.experts if matrix.second else 1.0
    return matrix.numbers * share if matrix.width > 1 else 0.0
