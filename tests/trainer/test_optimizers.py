"""Each optimizer learns, takes the memory that the documentation says, and resumes from a checkpoint bit by bit."""

from pathlib import Path

import bitsandbytes
import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers.optimization import Adafactor as TransformersAdafactor

from shared.errors import DataError
from tests.trainer.builders import relative_difference
from tests.trainer.conftest import Launch
from tests.trainer.launched import (
    EXAMPLE,
    OPTIMS,
    full_parameters,
    muon_alone,
    optim_learner,
    optimized,
    rows_of_step,
    take_steps,
)
from trainer.checkpoints import checkpoint, folders, restore
from trainer.process.parallel import Parallel
from trainer.settings.optimizer import Optim
from trainer.step.adafactor import Adafactor
from trainer.step.adamw_8bit import AdamW8bit
from trainer.step.learner import Learner


def state_bytes(learner: Learner) -> int:
    """Of this rank's states, without what is one number a parameter."""
    states = [value for one in learner.optimizers for state in one.state.values() for value in state.values()]
    tensors = [value.to_local() if isinstance(value, DTensor) else value for value in states]
    return sum(tensor.nbytes for tensor in tensors if tensor.numel() > 1)


@pytest.mark.parametrize("optim", OPTIMS)
def test_it_learns_the_same_tokens_again_and_again(optim: Optim, alone: Parallel) -> None:
    learner = optim_learner(optim, EXAMPLE, alone, learning_rate=1e-2)
    losses = [learner.step(*rows_of_step(0, 30, alone)).metrics["loss/loss"] for _ in range(6)]
    assert losses[-1] < 0.8 * losses[0], losses


@pytest.mark.parametrize("optim", OPTIMS)
def test_every_trained_parameter_has_one_optimizer(optim: Optim, alone: Parallel) -> None:
    learner = optim_learner(optim, EXAMPLE, alone)
    found = [id(p) for one in learner.optimizers for group in one.param_groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in learner.lm.parameters())
    assert {
        group["weight_decay"] for one in learner.optimizers for group in one.param_groups if group["params"][0].ndim < 2
    } == {0.0}
    rate = learner.step(*rows_of_step(0, 30, alone)).metrics["learner/learning_rate"]
    rates = [float(group["lr"]) for one in learner.optimizers for group in one.param_groups]
    assert rates == pytest.approx([rate] * len(rates))


# Bytes of state for each trained number, in float32. The model is small: its norms have no 8-bit states, and its rows are short.
@pytest.mark.parametrize(
    ("optim", "least", "most"), [("adamw", 8, 8), ("adamw_8bit", 2, 2.2), ("adafactor", 0, 0.1), ("muon", 4, 5)]
)
def test_its_states_take_the_bytes_that_the_documentation_says(
    optim: Optim, least: float, most: float, alone: Parallel
) -> None:
    learner = optim_learner(optim, EXAMPLE, alone)
    take_steps(learner, 1, 30, alone)
    found = state_bytes(learner) / sum(p.numel() for p in learner.lm.parameters())
    assert least <= found <= most


def test_two_processes_resume_their_8_bit_states_bit_by_bit(two_processes: Launch) -> None:
    found = torch.load(two_processes.out / "optimizers.pt", weights_only=True)
    expected, resumed = found["8 bits, uninterrupted"], found["8 bits, resumed"]
    assert all(torch.equal(resumed[name], tensor) for name, tensor in expected.items())


# Not muon: of a gradient of few tokens it makes most directions out of rounding, also where rows are packed otherwise.
@pytest.mark.parametrize("optim", [optim for optim in OPTIMS if optim != "muon"])
def test_two_processes_step_as_one(optim: Optim, two_processes: Launch, alone: Parallel) -> None:
    two = torch.load(two_processes.out / "optimizers.pt", weights_only=True)[optim]
    start, one = full_parameters(optim_learner(optim, EXAMPLE, alone)), optimized(optim, EXAMPLE, alone)
    moved = {name: one[name] - start[name] for name in one}
    limit = {"adamw_8bit": 0.05}.get(optim, 1e-3)  # of the whole movement: a shard's blocks of 8-bit numbers are others
    assert relative_difference({name: two[name] - start[name] for name in two}, moved) < limit


def test_muon_makes_the_whole_matrix_orthogonal_not_each_shard(two_processes: Launch) -> None:
    found = torch.load(two_processes.out / "optimizers.pt", weights_only=True)["a matrix"]
    assert relative_difference(found, muon_alone()) < 0.05  # it computes in bfloat16


def test_adamw_8bit_steps_as_bitsandbytes_own() -> None:
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(60, 80, generator=generator)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    one = AdamW8bit([{"params": [ours], "weight_decay": 0.1}], 3e-2, (0.9, 0.98), 1e-8)
    other = bitsandbytes.optim.AdamW8bit([theirs], lr=3e-2, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(60, 80, generator=generator)
        for parameter, optimizer in ((ours, one), (theirs, other)):
            parameter.grad = gradient.clone()
            optimizer.step()
        assert torch.equal(ours, theirs)
    assert float((ours - start).detach().abs().max()) > 0.05


def test_adafactor_steps_as_transformers_own() -> None:
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    start = [some(7, 5), some(3, 4, 6), some(9), some(1, 8)]
    ours, theirs = [[tensor.clone().requires_grad_() for tensor in start] for _ in range(2)]
    kind = {"lr": 3e-2, "weight_decay": 0.1}
    one = Adafactor([{"params": ours, "weight_decay": 0.1}], 3e-2)
    other = TransformersAdafactor(theirs, scale_parameter=False, relative_step=False, warmup_init=False, **kind)
    for _ in range(5):
        gradients = [10 * some(*tensor.shape) for tensor in start]
        for parameters in (ours, theirs):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
        one.step()
        other.step()
        for found, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optim", OPTIMS)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_by_bit(optim: Optim, tmp_path: Path, alone: Parallel) -> None:
    learner = optim_learner(optim, EXAMPLE, alone)
    take_steps(learner, 2, 30, alone)
    checkpoint.Checkpoints(tmp_path, alone, asynchronous=False).save(learner, {})
    take_steps(learner, 4, 30, alone)
    resumed = optim_learner(optim, EXAMPLE, alone)
    path = folders.latest(tmp_path)
    assert path
    restore.load(resumed, path, alone)
    take_steps(resumed, 4, 30, alone)
    expected = full_parameters(learner)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in full_parameters(resumed).items())
    start = full_parameters(optim_learner(optim, EXAMPLE, alone))
    assert not all(torch.equal(tensor, start[name]) for name, tensor in expected.items())


def test_states_of_another_optimizer_or_layout_are_refused(tmp_path: Path, alone: Parallel) -> None:
    learner = optim_learner("adamw_8bit", EXAMPLE, alone)
    take_steps(learner, 1, 30, alone)
    checkpoint.Checkpoints(tmp_path, alone, asynchronous=False).save(learner, {})
    path = folders.latest(tmp_path)
    assert path
    with pytest.raises(DataError, match="states of optim adamw_8bit; this start has adamw, expected the same"):
        restore.load(optim_learner("adamw", EXAMPLE, alone), path, alone)
    (path / "digests-0.json").unlink()
    (path / restore.STATE_FILE).write_text(
        (path / restore.STATE_FILE).read_text().replace('"world_size": 1', '"world_size": 2')
    )
    with pytest.raises(DataError, match="8-bit states of 2 processes"):
        restore.load(learner, path, alone)
