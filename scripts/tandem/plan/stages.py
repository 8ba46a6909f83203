"""The stages of a planned trainer, as `stage_starts` in `trainer/modeling/pipeline_parallel.py` cuts a model; without torch.

A test compares the two: tests/tandem/plan/test_plan_of_stages.py.
"""

from functools import cache

from shared.errors import ConfigError
from tandem.plan.models import ModelShape


@cache
def layers_of_stages(shape: ModelShape, stages: int) -> tuple[int, ...]:
    """Numbers of layers. Raises ConfigError for fewer layers than stages."""
    if shape.layers < stages:
        raise ConfigError(f"pp_size is {stages}, but {shape.name} has {shape.layers} layers; expected at most as many")
    if stages == 1:
        return (shape.layers,)
    embedding, layer = shape.vocabulary * shape.hidden, shape.layer_numbers

    @cache
    def cut(count: int, stage: int) -> tuple[int, int]:
        """The largest of the first stages, to this one, and where this one begins."""
        ends = embedding * (stage == 1) + (embedding + shape.hidden) * (stage == stages)
        if stage == 1:
            return count * layer + ends, 0
        starts = range(stage - 1, count)
        return min((max(cut(start, stage - 1)[0], (count - start) * layer + ends), start) for start in starts)

    counts, end = list[int](), shape.layers
    for stage in range(stages, 0, -1):
        start = cut(end, stage)[1]
        counts.append(end - start)
        end = start
    return tuple(counts[::-1])
