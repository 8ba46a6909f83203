"""Experts whose number the processes do not divide are cut evenly, inside each of them, and train what one process trains."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from shared.weights.files import WEIGHTS_FILE
from tests.trainer.builders import relative_difference, tiny_experts_model
from tests.trainer.launched import exact_learner, full_parameters, optim_learner, take_steps
from tests.trainer.layouts import BALANCED, MAX_TOKENS, Comparison, Layout, comparison, run
from trainer.modeling.tensor_parallel import cut_layers
from trainer.process.parallel import Parallel
from trainer.process.shard_settings import ShardSettings
from trainer.process.sharding import shard_model
from trainer.publishing.weights import write_weights
from trainer.settings.optimizer import Optim

ONE, TWO, FOUR, WITH_LAYERS, WITH_ROWS = Layout(1), Layout(2), Layout(4), Layout(2, tp=2), Layout(2, cp=2)
REPORTED = ("learner/grad_norm", "loss/loss", "loss/router_aux_loss", "experts/load_imbalance_mean")
EXPERTS = "model.layers.1.mlp.experts"


@pytest.fixture(scope="module")
def compared() -> Iterator[Comparison]:
    with comparison(model=tiny_experts_model(num_experts=3), loss=BALANCED) as compared:
        yield compared


def held_shapes(num_experts: int, parallel: Parallel) -> list[tuple[int, ...]]:
    """Of this process's part of the experts' two tensors; whole (num_experts, 48, 32) and (num_experts, 32, 24)."""
    model = tiny_experts_model(num_experts=num_experts, dtype=torch.float32)
    cut_layers(model, parallel.mesh["tp"], parallel.device)
    shard_model(model, ("Qwen3MoeDecoderLayer",), parallel)
    shapes = []
    for name in ("gate_up_proj", "down_proj"):
        parameter = model.get_parameter(f"{EXPERTS}.{name}")
        assert isinstance(parameter, DTensor)
        assert len(parameter) == num_experts
        shapes.append(tuple(parameter.to_local().shape))
    return shapes


def test_experts_that_the_processes_do_not_divide_are_cut_by_rows() -> None:
    def work(parallel: Parallel) -> None:
        assert held_shapes(3, parallel) == [(3, 12, 32), (3, 8, 24)]
        assert held_shapes(6, parallel) == [(6, 12, 32), (6, 8, 24)]
        assert held_shapes(4, parallel) == [(1, 48, 32), (1, 32, 24)]

    run(FOUR, work)


def test_experts_that_tp_size_has_cut_are_cut_by_rows_over_the_data() -> None:
    def work(parallel: Parallel) -> None:
        assert held_shapes(2, parallel) == [(1, 24, 32), (1, 16, 24)]

    run(WITH_LAYERS, work)


@pytest.mark.parametrize(
    "layout",
    [FOUR, *(pytest.param(each, marks=pytest.mark.thorough) for each in (TWO, WITH_ROWS))],
    ids=str,
)
def test_every_layout_trains_the_parameters_of_one_process_and_reports_its_numbers(
    layout: Layout, compared: Comparison
) -> None:
    compared.assert_as_alone(layout, REPORTED)


@pytest.mark.thorough
def test_with_tp_size_they_train_the_parameters_of_one_process() -> None:
    with comparison(model=tiny_experts_model(num_experts=2), loss=BALANCED) as compared:
        expected = compared.trained(ONE)
        assert relative_difference(compared.trained(WITH_LAYERS), expected) < 1e-9
        for saved_by, continued_by in ((WITH_LAYERS, ONE), (ONE, WITH_LAYERS)):
            assert relative_difference(compared.continued(saved_by, continued_by), expected) < 1e-9


def test_they_are_loaded_by_the_first_process_and_written_whole(tmp_path: Path) -> None:
    tiny_experts_model(num_experts=3).save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        first_loads = dataclasses.replace(parallel, settings=ShardSettings(first_loads=True))
        learner = exact_learner(tmp_path / "model", first_loads)
        found = full_parameters(learner)
        for name, parameter in full_parameters(exact_learner(tmp_path / "model", parallel)).items():
            assert torch.equal(found[name], parameter), name
        write_weights(learner.causal_lm, tmp_path / "model", tmp_path / "written", parallel)

    run(FOUR, work)
    expected, written = (load_file(tmp_path / each / WEIGHTS_FILE) for each in ("model", "written"))
    assert expected.keys() == written.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(("optim", "limit"), [("adafactor", 1e-4), ("adamw_8bit", 0.05)])
def test_optimizers_step_them_as_one_process_does(optim: Optim, limit: float, tmp_path: Path) -> None:
    """Relative to the whole movement; each shard has its own blocks of 8-bit numbers. Muon has AdamW for experts."""
    tiny_experts_model(num_experts=3, dtype=torch.float32).save_pretrained(tmp_path / "model")

    def work(parallel: Parallel) -> None:
        learner = optim_learner(optim, tmp_path / "model", parallel)
        start = full_parameters(learner)
        take_steps(learner, 2, MAX_TOKENS, parallel)
        moved = {name: of - start[name] for name, of in full_parameters(learner).items() if "experts" in name}
        if parallel.is_main:
            torch.save(moved, tmp_path / str(parallel.world_size))

    for layout in (ONE, FOUR):
        run(layout, work)
    one, four = (torch.load(tmp_path / size, weights_only=True) for size in ("1", "4"))
    for name, expected in one.items():
        assert float((four[name] - expected).norm() / expected.norm()) < limit, name
