"""One update is the same whatever rows and processes it is spread over, and never writes a number that is not one."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from tests.trainer.builders import relative_difference
from tests.trainer.conftest import Launch
from tests.trainer.launched import LAST_STEP, OPTIMIZER, exact_learner, full_parameters, rows_of_step, take_steps
from trainer.learner import open_learner
from trainer.losses import Denominators, LossConfig, LossName
from trainer.parallel import Parallel
from trainer.schedule import learning_rate

TOLERANCE = 1e-9
TIMES = ("learner/step_s", "learner/rounds")


def test_splitting_a_step_into_rows_does_not_change_the_update(model_directory: Path, alone: Parallel) -> None:
    results = {}
    for max_tokens in (12, 10_000):
        learner = exact_learner(model_directory, alone)
        metrics = take_steps(learner, LAST_STEP, max_tokens, alone)
        results[max_tokens] = (full_parameters(learner), metrics)
    (many, many_metrics), (one, one_metrics) = results[12], results[10_000]
    assert many_metrics["learner/rounds"] > 3 * one_metrics["learner/rounds"]
    assert relative_difference(many, one) < TOLERANCE
    for name in one_metrics.keys() - TIMES:
        assert many_metrics[name] == pytest.approx(one_metrics[name], rel=TOLERANCE, abs=1e-12), name


def test_two_processes_make_the_update_of_one(model_directory: Path, alone: Parallel, two_processes: Launch) -> None:
    learner = exact_learner(model_directory, alone)
    before = full_parameters(learner)
    metrics = take_steps(learner, LAST_STEP, 30, alone)
    two = torch.load(two_processes.out / "result.pt", weights_only=True)
    after = full_parameters(learner)
    assert relative_difference(before, after) > 1e-3, "the steps moved nothing: this test would prove nothing"
    assert relative_difference(two["parameters"], after) < TOLERANCE
    for name in metrics.keys() - TIMES:
        assert two["metrics"][name] == pytest.approx(metrics[name], rel=TOLERANCE, abs=1e-12), name


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(model_directory: Path, alone: Parallel) -> None:
    learner = exact_learner(model_directory, alone)
    before = full_parameters(learner)
    rows, denominators = rows_of_step(0, 30, alone)
    poisoned = dataclasses.replace(rows[-1], advantage_E=rows[-1].advantage_E * math.nan)
    result = learner.step([*rows[:-1], poisoned], denominators)
    assert result.skipped
    assert result.metrics["learner/skipped_steps"] == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in full_parameters(learner).items())
    assert not learner.step(rows, denominators).skipped, "a skipped step must leave nothing behind"
    fresh = exact_learner(model_directory, alone)
    fresh.steps_done = 1  # the same learning rate
    fresh.step(rows, denominators)
    assert relative_difference(full_parameters(learner), full_parameters(fresh)) == 0


def test_a_step_without_anything_to_train_is_skipped_and_counted(model_directory: Path, alone: Parallel) -> None:
    learner = exact_learner(model_directory, alone)
    before = full_parameters(learner)
    result = learner.step([], Denominators.count(torch.zeros(0, dtype=torch.int64)))
    assert result.skipped
    assert learner.steps_done == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in full_parameters(learner).items())


def test_the_gradient_is_clipped_by_its_global_norm(model_directory: Path, alone: Parallel) -> None:
    rows, denominators = rows_of_step(0, 30, alone)
    norms = []
    for limit in (0.0, 0.01):
        config = dataclasses.replace(OPTIMIZER, max_grad_norm=limit)
        loss = LossConfig(loss_calculater=LossName.CROSS_ENTROPY)
        learner = open_learner(model_directory, loss, config, alone, dtype="float64")
        norms.append(learner.step(rows, denominators).metrics["learner/grad_norm"])
        first_moments = [state["exp_avg"] for state in learner.optimizer.state.values()]
        total = math.sqrt(sum(float(moment.full_tensor().square().sum()) for moment in first_moments)) / 0.1
        assert total == pytest.approx(limit or norms[0], rel=1e-4)
    assert norms[0] == norms[1] > 0.01, "the norm reported is that before clipping"


def test_bfloat16_compute_learns_with_float32_parameters(model_directory: Path, alone: Parallel) -> None:
    parallel = dataclasses.replace(alone, settings=dataclasses.replace(alone.settings, precision="bf16"))
    loss = LossConfig(loss_calculater=LossName.CROSS_ENTROPY)
    learner = open_learner(model_directory, loss, dataclasses.replace(OPTIMIZER, learning_rate=1e-2), parallel)
    losses = [learner.step(*rows_of_step(0, 30, parallel)).metrics["loss/loss"] for _ in range(6)]
    assert losses[-1] < 0.8 * losses[0]
    assert {p.dtype for p in learner.lm.parameters()} == {torch.float32}


def test_activation_checkpointing_changes_no_digit(model_directory: Path, alone: Parallel) -> None:
    settings = dataclasses.replace(alone.settings, activation_checkpointing=True)
    checkpointed = dataclasses.replace(alone, settings=settings)
    found = []
    for parallel in (alone, checkpointed):
        learner = exact_learner(model_directory, parallel)
        take_steps(learner, 2, 30, parallel)
        found.append(full_parameters(learner))
    assert relative_difference(*found) < TOLERANCE


def test_the_learning_rate_warms_up_and_falls_to_its_floor() -> None:
    def rate(step: int, schedule: str) -> float:
        return learning_rate(step, peak=2.0, schedule=schedule, warmup_steps=4, max_steps=12, floor_ratio=0.25)

    assert [rate(step, "constant") for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert rate(4, "cosine") == rate(4, "linear") == 2.0
    assert rate(8, "linear") == pytest.approx(1.25)
    assert rate(8, "cosine") == pytest.approx(1.25)
    assert rate(6, "cosine") > rate(6, "linear")
    assert [rate(step, schedule) for schedule in ("linear", "cosine") for step in (12, 99)] == [0.5] * 4
