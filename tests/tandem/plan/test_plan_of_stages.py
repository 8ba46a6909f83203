"""The stages of a plan are those of the trainer."""

from itertools import pairwise

import pytest

from shared.errors import ConfigError
from tandem.plan.models import KNOWN
from tandem.plan.stages import layers_of_stages
from trainer.modeling.pipeline_parallel import stage_starts


@pytest.mark.parametrize("name", KNOWN)
def test_a_plan_cuts_a_model_where_the_trainer_does(name: str) -> None:
    shape = KNOWN[name]
    embedding = shape.vocabulary * shape.hidden
    for stages in (2, 3, 4, 8, 16):
        layers = [shape.layer_numbers] * shape.layers
        starts = stage_starts(layers, stages, first=embedding, last=embedding + shape.hidden)
        assert list(layers_of_stages(shape, stages)) == [end - start for start, end in pairwise(starts)]
    assert layers_of_stages(shape, 1) == (shape.layers,)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pp_size is 32, but Qwen3-0\.6B has 28 layers"):
        layers_of_stages(KNOWN["Qwen3-0.6B"], 32)
