"""Processes that hold the experts together train what one process trains, whoever's tokens choose which of them.

`python -m tests.trainer.layouts --experts --layouts 1,2x1x1x1x2,4x1x1x1x2,2x2x1x1x4` compares more layouts with each other.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shared.errors import ConfigError
from shared.weights.files import WEIGHTS_FILE
from tests.trainer.builders import relative_difference, tiny_experts_model, tiny_model
from tests.trainer.launched import OPTIMIZER, exact_learner, full_parameters, take_steps
from tests.trainer.layouts import BALANCED, MAX_TOKENS, Comparison, Layout, comparison, run
from trainer.losses import LossConfig
from trainer.modeling.expert_parallel import expert_modules, spread_experts
from trainer.process.parallel import LaunchError, Parallel, parallel_session
from trainer.process.shard_settings import ShardSettings
from trainer.process.sharding import shard_model
from trainer.publishing.weights import write_weights
from trainer.settings.memory import MemorySettings
from trainer.settings.trained_parts import Trainable
from trainer.step.opening import LearnerOptions, open_learner

ONE, TWO_FOR_EXPERTS = Layout(1), Layout(2, ep=2)
TWICE_TWO, TWO_ROWS = Layout(4, ep=2), Layout(2, cp=2, ep=2)
SLICES_OF_ROWS, SLICES_IN_STAGES = Layout(1, tp=2, cp=2, ep=4), Layout(1, tp=2, pp=2, ep=2)
WITH_LAYERS, ALL_FOR_EXPERTS = Layout(2, tp=2, ep=2), Layout(2, tp=2, ep=4)
LONG = 120  # tokens of a row: more than the 64 of which short ones are padded, so that each slice has some
REPORTED = ("learner/grad_norm", "loss/loss", "loss/router_aux_loss", "experts/load_imbalance_mean")
OF_REPLAY = ("experts/replayed_fraction", "experts/replay_differs_fraction")
EXPERTS = "model.layers.1.mlp.experts"
CHOICES = {  # (token, expert) of each process: rows of unequal length, processes without tokens, experts that nobody chooses
    "all over": ([[0, 3], [1, 2], [2, 0], [3, 1], [0, 1]], [[3, 2], [0, 2], [1, 3]]),
    "one process receives nothing": ([[0, 1], [1, 0], [0, 1]], [[1, 0]]),
    "one process has nothing": ([[2, 3], [0, 1], [3, 0]], []),
    "neither has nor receives": ([[0, 1], [1, 0]], []),
}


@pytest.fixture(scope="module")
def compared() -> Iterator[Comparison]:
    with comparison(model=tiny_experts_model(), loss=BALANCED) as compared:
        yield compared


@pytest.mark.parametrize(
    "layout",
    [
        TWO_FOR_EXPERTS,
        WITH_LAYERS,
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (TWICE_TWO, TWO_ROWS, ALL_FOR_EXPERTS)),
    ],
    ids=str,
)
def test_every_layout_trains_the_parameters_of_one_process_and_reports_its_numbers(
    layout: Layout, compared: Comparison
) -> None:
    compared.assert_as_alone(layout, REPORTED)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(2, cp=2, ep=4),
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (TWO_FOR_EXPERTS, TWICE_TWO, ALL_FOR_EXPERTS)),
    ],
    ids=str,
)
def test_an_engines_choices_are_repeated_by_experts_on_other_processes(layout: Layout) -> None:
    """With the loss that balances experts; slices of rows have the choices of their own tokens."""
    with comparison(model=tiny_experts_model(), loss=BALANCED, replayed=True) as replayed:
        assert relative_difference(replayed.trained(layout), replayed.trained(ONE)) < 1e-9
        for name in (*REPORTED, *OF_REPLAY):
            assert replayed.metrics[layout][name] == pytest.approx(replayed.metrics[ONE][name], rel=1e-9), name


@pytest.mark.parametrize(
    "layout",
    [
        Layout(1, tp=2, ep=2),
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (SLICES_OF_ROWS, SLICES_IN_STAGES)),
    ],
    ids=str,
)
def test_slices_of_long_rows_are_balanced_and_repeat_an_engines_choices_as_one_process_does(layout: Layout) -> None:
    """Layers are computed again in the backward."""
    with comparison(model=tiny_experts_model(), loss=BALANCED, replayed=True, max_tokens=LONG) as long:
        long.memory = MemorySettings(activation_checkpointing=True)
        long.assert_as_alone(layout, (*REPORTED, *OF_REPLAY))


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_tokens_reach_their_experts_and_gradients_come_back(implementation: str) -> None:
    """Every kernel, with rows of unequal length and exchanges of nothing."""
    dtype, tolerance = (torch.float32, 1e-5) if implementation == "grouped_mm" else (torch.float64, 1e-12)

    def experts() -> Any:
        model = tiny_experts_model(dtype=dtype)
        model.set_experts_implementation(implementation)
        return model

    def work(parallel: Parallel) -> None:
        model = experts()
        spread_experts(model, parallel)
        for choice in CHOICES.values():
            outputs, inputs = computed(model, choice[parallel.rank], parallel.rank)
            whole, hidden = computed(experts(), [pair for of_rank in choice for pair in of_rank], None, choice)
            first = sum(len(of_rank) for of_rank in choice[: parallel.rank])
            own = slice(first, first + len(choice[parallel.rank]))
            torch.testing.assert_close(outputs, whole["outputs"][own], rtol=tolerance, atol=tolerance)
            for mine, all_tokens in zip(inputs, hidden, strict=True):
                torch.testing.assert_close(mine, all_tokens[own], rtol=tolerance, atol=tolerance)
            for name, parameter in model.get_submodule(EXPERTS).named_parameters():
                gradient = parameter.grad
                assert isinstance(gradient, DTensor)
                expected = whole[name].tensor_split(2)[parallel.rank] / 2  # FSDP would sum it over one process, not two
                torch.testing.assert_close(gradient.to_local(), expected, rtol=tolerance, atol=tolerance)
                parameter.grad = None

    run(TWO_FOR_EXPERTS, work)


def computed(
    model: Any, pairs: list[list[int]], rank: int | None, choice: tuple[list[list[int]], ...] = ()
) -> tuple[Any, tuple[Tensor, Tensor]]:
    """(outputs, gradients of hidden states and weights); of the whole model instead of outputs all that is compared."""
    dtype = model.dtype
    ranks = [(rank, len(pairs))] if rank is not None else list(enumerate(map(len, choice)))
    hidden = torch.cat([_random(count, 32, seed, dtype) for seed, count in ranks]).requires_grad_()
    weights = torch.cat([_random(count, 2, 10 + seed, dtype) for seed, count in ranks]).requires_grad_()
    aims = torch.cat([_random(count, 32, 20 + seed, dtype) for seed, count in ranks])
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    module = model.get_submodule(EXPERTS)
    outputs = module(hidden, index, weights)
    (outputs * aims).sum().backward()
    assert hidden.grad is not None
    assert weights.grad is not None
    gradients = {name: p.grad for name, p in module.named_parameters()}
    found = outputs.detach() if rank is not None else {"outputs": outputs.detach(), **gradients}
    return found, (hidden.grad, weights.grad)


def _random(count: int, width: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def test_a_process_holds_its_experts_and_those_with_the_same_ones_share_them() -> None:
    """Of four experts two are held by a process of a line; of two, one, whose rows two processes share."""

    def work(parallel: Parallel) -> None:
        for num_experts, shape in ((4, (1, 48, 32)), (2, (1, 24, 32))):
            model = tiny_experts_model(num_experts=num_experts, dtype=torch.float32)
            spread_experts(model, parallel)
            whole = model.get_parameter(f"{EXPERTS}.gate_up_proj")
            assert isinstance(whole, DTensor)
            assert whole.to_local().shape == (num_experts // 2, 48, 32)
            shard_model(model, ("Qwen3MoeDecoderLayer",), parallel, experts=expert_modules(model).values())
            held = model.get_parameter(f"{EXPERTS}.gate_up_proj")
            assert isinstance(held, DTensor)
            assert held.to_local().shape == shape
            assert held.shape == (num_experts, 48, 32)
            router = model.get_parameter("model.layers.1.self_attn.q_proj.weight")
            assert isinstance(router, DTensor)
            assert router.to_local().shape == (8, 32), "over all four"

    run(TWICE_TWO, work)


@pytest.mark.thorough
def test_the_grouped_kernel_trains_and_all_experts_are_written(tmp_path: Path) -> None:
    """In float32, with layers computed again in the backward."""
    tiny_experts_model(dtype=torch.float32).save_pretrained(tmp_path / "model")

    def train(parallel: Parallel) -> None:
        options = LearnerOptions(memory=MemorySettings(activation_checkpointing=True))
        learner = open_learner(tmp_path / "model", LossConfig(), OPTIMIZER, parallel, options)
        take_steps(learner, 2, MAX_TOKENS, parallel)
        write_weights(learner.causal_lm, tmp_path / "model", tmp_path / str(parallel.world_size), parallel)

    for layout in (ONE, TWO_FOR_EXPERTS):
        run(layout, train)
    expected = load_file(tmp_path / "1" / WEIGHTS_FILE)
    assert expected.keys() == load_file(tmp_path / "model" / WEIGHTS_FILE).keys()
    assert relative_difference(load_file(tmp_path / "2" / WEIGHTS_FILE), expected) < 1e-4


@pytest.mark.thorough
def test_adapters_train_around_experts_that_stay() -> None:
    adapters = Trainable(lora_rank=2, lora_target_modules=["q_proj", "v_proj"])
    with comparison(adapters, model=tiny_experts_model(), loss=BALANCED) as compared:
        expected = compared.trained(ONE)
        assert relative_difference(compared.trained(TWO_FOR_EXPERTS), expected) < 1e-9


@pytest.mark.thorough
def test_experts_that_only_the_first_process_can_read_are_trained_by_all(tmp_path: Path) -> None:
    tiny_experts_model().save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        expected = exact_learner(tmp_path / "model", parallel)
        settings = ShardSettings(first_loads=True, forward_prefetch=True)
        other = exact_learner(tmp_path / "model", dataclasses.replace(parallel, settings=settings))
        for each in (expected, other):
            take_steps(each, 1, 30, parallel)
        found = full_parameters(other)
        for name, parameter in full_parameters(expected).items():
            assert torch.equal(found[name], parameter), name

    run(TWO_FOR_EXPERTS, work)


def test_models_and_processes_over_which_no_experts_can_be_spread_are_refused() -> None:
    with pytest.raises(LaunchError, match="ep_size is 2, but 1 processes came up"), parallel_session("cpu", ep_size=2):
        pass

    def work(parallel: Parallel) -> None:
        with pytest.raises(ConfigError, match="ep_size is 2, but num_experts is 3; expected a divisor"):
            spread_experts(tiny_experts_model(num_experts=3), parallel)
        with pytest.raises(
            ConfigError, match="model type qwen3 has no plan for expert parallelism; expected ep_size 1"
        ):
            spread_experts(tiny_model(), parallel)
        model = tiny_experts_model()
        model.get_submodule(EXPERTS).register_parameter("scale", nn.Parameter(torch.ones(32)))
        with pytest.raises(
            ConfigError, match=r"mlp\.experts\.scale of model type qwen3_moe has no part for each expert"
        ):
            spread_experts(model, parallel)

    run(TWO_FOR_EXPERTS, work)
