"""The stages of a plan are those of the trainer."""

from itertools import pairwise

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shared.errors import ConfigError
from shared.weights.stage_starts import stage_starts
from tandem.plan.models import KNOWN
from tandem.plan.stages import costs_of, layers_of_stages
from trainer.modeling.stage_costs import stage_costs

STAGES = (2, 3, 4, 8, 16)


@pytest.mark.parametrize("name", KNOWN)
def test_a_plan_cuts_a_model_where_the_trainer_does(name: str) -> None:
    shape = KNOWN[name]
    config = shape.config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    costs = stage_costs(model, ("embed_tokens",), ("norm",))
    planned = costs_of(shape)
    for found, expected in zip([*planned.layers, *planned[1:]], [*costs.layers, *costs[1:]], strict=True):
        assert found == pytest.approx(expected, rel=1e-9)
    for stages in STAGES:
        starts = stage_starts(costs, stages)
        assert list(layers_of_stages(shape, stages)) == [end - start for start, end in pairwise(starts)]
    assert layers_of_stages(shape, 1) == (shape.layers,)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pp_size is 32, but the model has 28 layers"):
        layers_of_stages(KNOWN["Qwen3-0.6B"], 32)
