"""Which models are split into stages, where, and what is refused."""

import copy
import itertools
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from shared.errors import ConfigError
from shared.weights.stage_starts import Cost, ModelCosts, stage_starts
from tests.trainer.builders import tiny_experts_model, tiny_model
from tests.trainer.launched import OPTIMIZER, rows_of_step
from tests.trainer.layouts import Layout, run
from tests.trainer.stages import of_stage
from tests.trainer.tiny_models import EVERY_TYPE, tiny
from trainer.losses import LossConfig
from trainer.modeling.attention import dense_mask
from trainer.modeling.forward import TreeLM
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.modeling.stage_costs import stage_costs
from trainer.process.parallel import LaunchError, Parallel, parallel_session
from trainer.settings.trained_parts import Trainable
from trainer.step.opening import LearnerOptions, open_learner

pytestmark = pytest.mark.slow

TWO_STAGES = Layout(1, pp=2)
IDS = torch.tensor([[5, 9, 33, 7, 100, 21, 9]])


def test_the_slowest_stage_is_as_fast_and_then_the_largest_as_small_as_can_be() -> None:
    alike = [Cost(1, 1)] * 8
    assert stage_starts(ModelCosts(alike), 2) == [0, 4, 8]
    assert stage_starts(ModelCosts(alike, last=Cost(4, 4)), 2) == [0, 6, 8]
    assert stage_starts(ModelCosts([Cost(10, 10)] * 8, Cost(15, 15), Cost(15, 15)), 4) == [0, 1, 4, 7, 8]
    assert stage_starts(ModelCosts([Cost(2, 1)] * 3, Cost(0, 5)), 2) == [0, 1, 3], "the embedding decides"
    drawn = random.Random(0)
    for count, stages in ((7, 3), (6, 4), (2, 2), (8, 5)):
        layers = [Cost(drawn.randint(1, 9), drawn.randint(1, 9)) for _ in range(count)]
        costs = ModelCosts(layers, Cost(0, 3), Cost(4, 4))
        cuts = itertools.combinations(range(1, count), stages - 1)
        every = [[0, *cut, count] for cut in cuts]
        assert largest(stage_starts(costs, stages), costs) == min(largest(starts, costs) for starts in every)


def largest(starts: list[int], costs: ModelCosts) -> tuple[float, float]:
    """Operations of the slowest stage, parameters of the largest."""
    layers, first, last = costs
    parts = [layers[start:end] for start, end in itertools.pairwise(starts)]
    parts = [[first, *parts[0]], *parts[1:-1], [*parts[-1], last]]
    operations, parameters = (max(sum(cost[place] for cost in part) for part in parts) for place in (0, 1))
    return operations, parameters


def test_what_a_token_costs_is_counted_in_products() -> None:
    """Trained and frozen layers, the head for the tokens that are trained, of experts those that a token gets."""
    dense, ends = tiny_model(tied=True, layers=3), (["embed_tokens"], ["norm"])
    matrices = sum(p.numel() for p in dense.model.layers[0].parameters() if p.dim() > 1)
    head = dense.lm_head.weight.numel()
    costs = stage_costs(dense, *ends)
    assert [layer.operations for layer in costs.layers] == [3 * matrices] * 3
    assert (costs.first.operations, costs.first.parameters) == (0, head)
    assert costs.last.operations == pytest.approx(4 * 0.6 * head)
    dense.requires_grad_(False)
    dense.model.layers[1].requires_grad_(True)
    costs = stage_costs(dense, *ends)
    assert [layer.operations for layer in costs.layers] == [matrices, 3 * matrices, 2 * matrices]
    assert costs.last.operations == pytest.approx(3 * 0.6 * head)
    mixture = tiny_experts_model()
    _, layer, _ = mixture.model.layers
    of_experts = sum(p.numel() for p in layer.mlp.experts.parameters())
    others = sum(p.numel() for p in layer.parameters() if p.dim() > 1) - of_experts
    assert stage_costs(mixture, *ends).layers[1].operations == 3 * (others + of_experts / 2), "two of four experts"


@pytest.mark.parametrize(
    "names",
    [
        ("llama", "gemma2", "gpt_neox", "phi", "cohere"),
        pytest.param(EVERY_TYPE, marks=pytest.mark.thorough),
    ],
    ids=["some", "every"],
)
def test_what_is_split_computes_what_the_whole_computes(names: tuple[str, ...]) -> None:
    """Bit by bit, of every type of transformers that is not refused: 76 with this version."""
    split = 0
    for name in names:
        try:
            model = tiny(name)
            expected = model(input_ids=IDS, use_cache=False).logits
            stages = [copy.deepcopy(model) for _ in range(2)]
            for number, stage in enumerate(stages):
                stage.tie_weights()
                cut_stages(stage, of_stage(number, 2), dtype=torch.float32)
        except Exception:  # noqa: BLE001  # no small model of this type can be made, or it is refused
            assert names is EVERY_TYPE, name
            continue
        hidden = stages[0].base_model(input_ids=IDS, use_cache=False).last_hidden_state
        assert torch.equal(stages[1](inputs_embeds=hidden, use_cache=False).logits, expected), name
        split += 1
    assert split == len(names) or split > 70


def test_models_that_are_no_chain_of_layers_are_refused() -> None:
    scaled = tiny("granite")
    scaled.model.embedding_multiplier = 3.0
    for model, why in (
        (scaled, "is no chain of layers: it changes hidden states before or after its layers"),
        (tiny("gpt2"), "has no plan for pipeline parallelism"),
    ):
        refuse(model, why)
    with pytest.raises(ConfigError, match="pp_size is 3, but the model has 2 layers"):
        cut_stages(tiny_model(), of_stage(0, 3), dtype=torch.float64)


def test_layers_that_leave_something_for_later_ones_are_no_chain() -> None:
    """In a dictionary that all receive, or as another result than the hidden states."""
    layer_call = nn.Module.__call__

    def with_a_dictionary(module: nn.Module, *args: Any, **named: Any) -> Any:
        more = {"shared_keys": {}} if type(module).__name__ == "_Recording" else {}
        return layer_call(module, *args, **named, **more)

    def with_a_second_result(module: nn.Module, *args: Any, **named: Any) -> Any:
        result = layer_call(module, *args, **named)
        return (result, result) if type(module).__name__ == "_Recording" else result

    for call, why in (
        (with_a_dictionary, "its layers share shared_keys"),
        (with_a_second_result, "its layers do not pass hidden states alone"),
    ):
        with patch.object(nn.Module, "__call__", call):
            refuse(tiny_model(), why)


def refuse(model: PreTrainedModel, why: str) -> None:
    """And the model stays as it was."""
    before = [type(module) for module in model.modules()]
    with pytest.raises(ConfigError, match=why):
        cut_stages(model, of_stage(0, 2), dtype=torch.float32)
    assert [type(module) for module in model.modules()] == before


def test_what_no_test_has_run_in_stages_is_refused_with_its_name(model_directory: Path) -> None:
    with (
        pytest.raises(
            LaunchError, match="tp_size is 2 and pp_size is 2, but 1 processes came up; expected a multiple of 4"
        ),
        parallel_session("cpu", tp_size=2, pp_size=2),
    ):
        pass

    def work(parallel: Parallel) -> None:
        quantized = Trainable(lora_rank=2, base_quantization="nf4")
        for name, options in (
            ("compile_layers true", LearnerOptions(compile_layers=True)),
            ("base_quantization nf4", LearnerOptions(trainable=quantized)),
            ("dropout true", LearnerOptions(dropout=True)),
        ):
            with pytest.raises(ConfigError, match=f"pp_size is 2, with {name}"):
                open_learner(model_directory, LossConfig(), OPTIMIZER, parallel, options)

    run(TWO_STAGES, work)


def test_hidden_states_of_another_type_are_refused_on_every_stage() -> None:
    def work(parallel: Parallel) -> None:
        model = tiny_model()
        lm = TreeLM(model, stage=cut_stages(model, parallel, dtype=torch.float32))
        pipeline = RowPipeline(lm, parallel.device, attn=dense_mask)
        with pytest.raises(
            RuntimeError, match=r"stage 0: ConfigError: pp_size is 2, but .* hidden states are torch\.float64"
        ):
            pipeline.rehearse(rows_of_step(0, 12, parallel)[0], (RuntimeError, ValueError))

    run(TWO_STAGES, work)
