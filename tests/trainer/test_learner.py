"""One update is the same over any number of rows and processes, and never writes a number that is not one."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Mamba2Config, MambaConfig, PreTrainedConfig

from tests.trainer.builders import (
    VOCABULARY,
    gradients,
    logprobs_one_by_one,
    random_group,
    relative_difference,
    tiny_model,
    whole,
)
from tests.trainer.conftest import Launch
from tests.trainer.formulas import reference_loss
from tests.trainer.launched import LAST_STEP, OPTIMIZER, exact_learner, full_parameters, rows_of_step, take_steps
from trainer.losses import Denominators, LossConfig, LossName
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.forward_choice import choose_forward_mode
from trainer.modeling.node_attention import spans_of_row
from trainer.process.parallel import Parallel
from trainer.reporting.loss_metrics import Measured
from trainer.step.accumulate import Accumulator
from trainer.step.opening import LearnerOptions, open_learner
from trainer.step.schedule import learning_rate
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import pack
from trainer.trees.tree import Merging, merge

TOLERANCE = 1e-9
TIMES = ("learner/step_s", "learner/rounds", "learner/passes")


@pytest.mark.parametrize("loss", [LossName.MINIRL, LossName.GSPO])
def test_splitting_a_step_into_rows_does_not_change_the_update(
    model_directory: Path, alone: Parallel, loss: LossName
) -> None:
    results = {}
    for max_tokens in (12, 10_000):
        learner = exact_learner(model_directory, alone, LossConfig(loss=loss))
        metrics = take_steps(learner, LAST_STEP, max_tokens, alone)
        results[max_tokens] = (full_parameters(learner), metrics)
    (many, many_metrics), (one, one_metrics) = results[12], results[10_000]
    assert many_metrics["learner/rounds"] > 3 * one_metrics["learner/rounds"]
    assert one_metrics["learner/passes"] == 1
    assert many_metrics["learner/passes"] == (2 if loss is LossName.GSPO else 1), "only what needs it costs a forward"
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


def minibatches(count: int, parallel: Parallel) -> list[Minibatch]:
    return [Minibatch(*rows_of_step(number, 30, parallel)) for number in range(count)]


def test_a_step_of_two_updates_is_two_steps_where_nothing_is_anchored_on_its_start(
    model_directory: Path, alone: Parallel
) -> None:
    config = dataclasses.replace(OPTIMIZER, lr_schedule="constant", warmup_steps=0)
    loss = LossConfig(loss=LossName.GRPO)
    together, apart = (
        open_learner(model_directory, loss, config, alone, LearnerOptions(dtype="float64")) for _ in range(2)
    )
    parts = minibatches(2, alone)
    result = together.step_in_minibatches(parts)
    for part in parts:
        apart.step(part.rows, part.denominators)
    assert result.metrics["learner/updates"] == 2
    assert (together.steps_done, apart.steps_done) == (1, 2)
    assert relative_difference(full_parameters(together), full_parameters(apart)) == 0


def test_the_proximal_policy_is_the_one_before_the_first_update_of_the_step(
    model_directory: Path, alone: Parallel
) -> None:
    loss = LossConfig(clip_anchor="proximal")
    learner = open_learner(model_directory, loss, OPTIMIZER, alone, LearnerOptions(dtype="float64"))
    parts = minibatches(2, alone)
    with torch.no_grad():
        before = [row_logprobs(learner.lm, row, attn=spans_of_row)[0] for row in parts[1].rows]
    first, later = learner._accumulator.anchors(parts)
    assert {anchors.proximal_E for anchors in first} == {None}
    for anchors, expected in zip(later, before, strict=True):
        torch.testing.assert_close(anchors.proximal_E, expected, rtol=1e-12, atol=1e-12)
    measured = []
    run = Accumulator.run

    def watched(self: Accumulator, *arguments: Any) -> tuple[Measured, int]:
        measured.append(run(self, *arguments))
        return measured[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accumulator, "run", watched)
        learner.step_in_minibatches(parts)
    one, two = (update.measured for update in measured)
    assert "loss/update_kl" not in one.sums, "its own new log-probs are the proximal ones"
    with torch.no_grad():
        before_sum = torch.cat(before).sum().item()
    assert two.sums["loss/update_kl"] == pytest.approx(before_sum - two.sums["loss/logprob"], rel=1e-6)
    assert abs(two.sums["loss/update_kl"]) > 1e-3


def test_a_loglinear_proximal_policy_costs_no_forward(model_directory: Path, alone: Parallel) -> None:
    loss = LossConfig(clip_anchor="proximal", proximal_logprobs="loglinear")
    learner = open_learner(model_directory, loss, OPTIMIZER, alone)
    anchors = learner._accumulator.anchors(minibatches(2, alone))
    assert [{of_row.proximal_E for of_row in of_rows} for of_rows in anchors] == [{None}, {None}]


def test_the_reference_model_is_frozen_apart_and_only_loaded_for_a_kl_term(
    model_directory: Path, alone: Parallel
) -> None:
    assert exact_learner(model_directory, alone).reference is None
    learner = open_learner(
        model_directory, LossConfig(kl_coefficient=0.1), OPTIMIZER, alone, LearnerOptions(dtype="float64")
    )
    assert learner.reference is not None
    assert not any(p.requires_grad for p in learner.reference.lm.parameters())
    before = [whole(p).clone() for p in learner.reference.lm.parameters()]
    divergences = [
        learner.step(*rows_of_step(step, 30, alone)).metrics["loss/reference_kl_mean_nats"] for step in range(3)
    ]
    assert divergences[0] == pytest.approx(0.0, abs=1e-12), "the run starts from the reference"
    assert divergences[2] > 1e-6
    after = [whole(p) for p in learner.reference.lm.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    trained = {id(p) for optimizer in learner.optimizers for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in learner.lm.parameters()}


def test_a_strong_kl_term_holds_the_policy_at_its_reference(model_directory: Path, alone: Parallel) -> None:
    divergences = []
    for coefficient in (1e-9, 100.0):
        loss = LossConfig(kl_coefficient=coefficient)
        config = dataclasses.replace(OPTIMIZER, max_grad_norm=0.0)
        learner = open_learner(model_directory, loss, config, alone)
        steps = [learner.step(*rows_of_step(0, 10_000, alone)).metrics for _ in range(6)]
        divergences.append(steps[-1]["loss/reference_kl_mean_nats"])
    assert divergences[1] < 0.3 * divergences[0]


FORBIDDING = {
    "sliding window": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
}


@pytest.mark.parametrize("settings", FORBIDDING.values(), ids=FORBIDDING.keys())
def test_a_model_that_forbids_trees_is_trained_sequence_by_sequence_with_a_message(
    settings: dict[str, Any], alone: Parallel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(**settings)
    model.save_pretrained(tmp_path)
    learner = open_learner(tmp_path, LossConfig(), OPTIMIZER, alone, LearnerOptions(dtype="float64"))
    assert learner.linear
    assert "no prefix trees" in caplog.text
    records = random_group(3) + random_group(4)
    trees = [merge(records, merging=Merging.LINEAR)]
    rows = pack(trees, 12, one_sequence_per_row=True)
    denominators = Denominators.count(torch.from_numpy(trees[0].trained_tokens_T))
    with exact_norms(learner.causal_lm), exact_norms(model):
        result = learner.step(rows, denominators)
        loss = reference_loss(logprobs_one_by_one(model, records), LossConfig())
        loss.backward()
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients(model).values()))
    assert result.metrics["loss/loss"] == pytest.approx(loss.item(), rel=TOLERANCE)
    assert result.metrics["learner/grad_norm"] == pytest.approx(norm, rel=TOLERANCE)


SPACES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}


@pytest.mark.parametrize(
    "config",
    [MambaConfig(**SPACES), Mamba2Config(**SPACES, num_heads=4, head_dim=16, n_groups=1)],
    ids=["Mamba", "Mamba2"],
)
def test_a_model_of_state_space_layers_alone_is_trained_sequence_by_sequence(
    alone: Parallel, tmp_path: Path, config: PreTrainedConfig
) -> None:
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    learner = open_learner(tmp_path, LossConfig(), OPTIMIZER, alone)
    assert learner.linear
    records = random_group(3)
    tree = merge(records, merging=Merging.LINEAR)
    rows = pack([tree], 12, one_sequence_per_row=True)
    result = learner.step(rows, Denominators.count(torch.from_numpy(tree.trained_tokens_T)))
    with torch.no_grad():
        expected = [float(token.new) for tokens in logprobs_one_by_one(model, records) for token in tokens]
    assert result.metrics["loss/logprob_mean_nats"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_a_tree_never_goes_through_a_model_that_forbids_it() -> None:
    lm = TreeLM(tiny_model(**FORBIDDING["sliding window"]))
    found = choose_forward_mode(lm, "auto", torch.device("cpu"))
    assert not found.way.trees
    (row,) = pack([merge(random_group(3))], 10_000)
    with pytest.raises(ValueError, match="one_sequence_per_row"):
        row_logprobs(lm, row, attn=lm.mask("cpu"))


def test_steps_on_trees_make_the_update_of_steps_on_single_sequences(model_directory: Path, alone: Parallel) -> None:
    results = []
    for trees_wanted in (True, False):
        learner = open_learner(
            model_directory, LossConfig(), OPTIMIZER, alone, LearnerOptions(dtype="float64", prefix_trees=trees_wanted)
        )
        assert learner.linear is not trees_wanted
        merging = Merging.TREE if trees_wanted else Merging.LINEAR
        with exact_norms(learner.causal_lm):
            for seed in range(3):
                tree = merge(random_group(seed), merging=merging)
                rows = pack([tree], 40, one_sequence_per_row=learner.linear)
                learner.step(rows, Denominators.count(torch.from_numpy(tree.trained_tokens_T)))
        results.append(full_parameters(learner))
    assert relative_difference(*results) < TOLERANCE


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


def test_weight_decay_is_for_matrices_and_never_for_norms(model_directory: Path, alone: Parallel) -> None:
    results = []
    for decay in (0.0, 0.5):
        optimizer = dataclasses.replace(OPTIMIZER, weight_decay=decay)
        learner = open_learner(model_directory, LossConfig(), optimizer, alone, LearnerOptions(dtype="float64"))
        learner.step(*rows_of_step(0, 10_000, alone))
        results.append(full_parameters(learner))
    without, decayed = results
    same = {name for name in without if torch.equal(without[name], decayed[name])}
    assert same == {name for name, tensor in without.items() if tensor.ndim < 2}


def test_a_step_without_anything_to_train_is_skipped_and_counted(model_directory: Path, alone: Parallel) -> None:
    learner = exact_learner(model_directory, alone)
    before = full_parameters(learner)
    result = learner.step([], Denominators.count(torch.zeros(0, dtype=torch.int64)))
    assert result.skipped
    assert learner.steps_done == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in full_parameters(learner).items())


def test_an_update_without_rows_changes_no_number_of_its_step(model_directory: Path, alone: Parallel) -> None:
    nothing = Minibatch([], Denominators.count(torch.zeros(0, dtype=torch.int64)))
    (one,) = minibatches(1, alone)
    found = []
    for parts in ([one], [nothing, one], [one, nothing]):
        learner = exact_learner(model_directory, alone)
        found.append(learner.step_in_minibatches(parts).metrics)
    alone_metrics = found[0]
    assert math.isfinite(alone_metrics["learner/grad_norm"])
    for metrics in found[1:]:
        for name in alone_metrics.keys() - TIMES:
            assert metrics[name] == pytest.approx(alone_metrics[name], rel=TOLERANCE), name


def test_the_loss_of_two_updates_is_their_mean(model_directory: Path, alone: Parallel) -> None:
    config = dataclasses.replace(OPTIMIZER, learning_rate=0.0)  # so that the second is of the same weights
    learner = open_learner(
        model_directory, LossConfig(kl_coefficient=0.1), config, alone, LearnerOptions(dtype="float64")
    )
    parts = minibatches(2, alone)
    losses = [learner.step(part.rows, part.denominators).metrics for part in parts]
    both = learner.step_in_minibatches(parts).metrics
    for name in ("loss/loss", "loss/policy_loss", "loss/kl_loss", "learner/grad_norm"):
        assert both[name] == pytest.approx(sum(metrics[name] for metrics in losses) / 2, rel=TOLERANCE), name


def test_the_gradient_is_clipped_by_its_global_norm(model_directory: Path, alone: Parallel) -> None:
    rows, denominators = rows_of_step(0, 30, alone)
    norms = []
    for limit in (0.0, 0.01):
        config = dataclasses.replace(OPTIMIZER, max_grad_norm=limit)
        loss = LossConfig(loss=LossName.CROSS_ENTROPY)
        learner = open_learner(model_directory, loss, config, alone, LearnerOptions(dtype="float64"))
        norms.append(learner.step(rows, denominators).metrics["learner/grad_norm"])
        first_moments = [state["exp_avg"] for optimizer in learner.optimizers for state in optimizer.state.values()]
        total = math.sqrt(sum(float(whole(moment).square().sum()) for moment in first_moments)) / 0.1
        assert total == pytest.approx(limit or norms[0], rel=1e-4)
    assert norms[0] == norms[1] > 0.01, "the norm reported is that before clipping"


def test_bfloat16_compute_learns_with_float32_parameters(model_directory: Path, alone: Parallel) -> None:
    parallel = dataclasses.replace(alone, settings=dataclasses.replace(alone.settings, precision="bf16"))
    loss = LossConfig(loss=LossName.CROSS_ENTROPY)
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
