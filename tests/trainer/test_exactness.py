"""Merged equals unmerged: the tree's loss and every parameter's gradient are those of one forward per sequence, in float64."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from tests.trainer import exactness_table
from tests.trainer.builders import (
    STALENESS,
    RecordBuilder,
    gradients,
    logprobs_one_by_one,
    random_group,
    relative_difference,
    tiny_model,
)
from tests.trainer.conftest import Launch
from tests.trainer.exactness import (
    CONFIGS,
    TOLERANCE,
    assert_same,
    backward,
    every_loss,
    forking_records,
    merged,
    one_by_one,
    seeds,
)
from tests.trainer.loss_cases import LOSSES
from trainer.losses import Denominators, LossConfig
from trainer.modeling.float64_norms import exact_norms
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.process.parallel import Parallel
from trainer.trees.packing import empty_row, pack
from trainer.trees.tree import merge


@pytest.fixture(scope="module")
def quick_cases() -> dict[str, LossConfig]:
    return {name: LOSSES[name] for name in exactness_table.QUICK}


@pytest.fixture(scope="module")
def wanted(quick_cases: dict[str, LossConfig]) -> dict[str, exactness_table.Step]:
    return exactness_table.expected(quick_cases)


@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_every_log_prob_is_that_of_one_forward_per_sequence(model: PreTrainedModel, seed: int) -> None:
    records = random_group(seed)
    wanted = [token.new for tokens in logprobs_one_by_one(model, records) for token in tokens]
    for row in pack([merge(records)], 10_000):
        found_E, _ = row_logprobs(TreeLM(model), row)
        assert (found_E - torch.stack(wanted)).abs().max() < 1e-12


@every_loss
@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_the_merged_step_has_the_loss_and_gradients_of_one_forward_per_sequence(
    model: PreTrainedModel, config: LossConfig, seed: int
) -> None:
    records = random_group(seed)
    expected_loss, expected = one_by_one(model, records, config)
    loss, found = merged(model, [merge(records).at(STALENESS)], config)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE, abs=1e-12)
    assert_same(found, expected)


@every_loss
@settings(max_examples=6, deadline=None)
@given(seed=seeds, max_tokens=st.integers(1, 40))
def test_splitting_a_tree_does_not_change_the_gradient(
    model: PreTrainedModel, config: LossConfig, seed: int, max_tokens: int
) -> None:
    records = random_group(seed)
    tree = merge(records).at(STALENESS)
    expected_loss, expected = merged(model, [tree], config)
    loss, found = merged(model, [tree], config, max_tokens=max_tokens, chunk=100)
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE, abs=1e-12)
    assert_same(found, expected)


@every_loss
@settings(max_examples=6, deadline=None)
@given(seed=seeds)
def test_neither_packing_groups_together_nor_their_order_changes_the_gradient(
    model: PreTrainedModel, config: LossConfig, seed: int
) -> None:
    groups = [random_group(seed + i, num_records=3) for i in range(3)]
    trees = [merge(records).at(STALENESS) for records in groups]
    apart_loss, apart = merged(model, trees, config, max_tokens=30)
    together_loss, together = merged(model, trees, config)
    shuffled_loss, shuffled = merged(model, [merge(records[::-1]).at(STALENESS) for records in groups[::-1]], config)
    assert together_loss == pytest.approx(apart_loss, rel=TOLERANCE, abs=1e-12)
    assert shuffled_loss == pytest.approx(apart_loss, rel=TOLERANCE, abs=1e-12)
    assert_same(together, apart)
    assert_same(shuffled, apart)


def test_every_loss_has_the_gradient_of_one_forward_per_sequence_merged_or_not_in_one_row_or_many(
    alone: Parallel, quick_cases: dict[str, LossConfig], wanted: dict[str, exactness_table.Step]
) -> None:
    table = exactness_table.differences(exactness_table.found(quick_cases, alone), wanted)
    assert {len(row) for row in table.values()} == {4}
    assert {case: max(row.values()) for case, row in table.items() if max(row.values()) > TOLERANCE} == {}


def test_two_processes_have_the_gradient_of_one_forward_per_sequence_for_every_loss(
    two_processes: Launch, wanted: dict[str, exactness_table.Step]
) -> None:
    found = torch.load(two_processes.out / "exactness.pt", weights_only=True)
    table = exactness_table.differences(found, wanted)
    assert {case: max(row.values()) for case, row in table.items() if max(row.values()) > TOLERANCE} == {}


def test_the_table_s_data_makes_every_loss_another_one() -> None:
    """A mask that takes nothing, or a clip that never acts, would always be exact."""
    losses = {case: loss for case, (loss, _) in exactness_table.expected(LOSSES).items()}
    twins = {(a, b) for a, b in itertools.combinations(losses, 2) if losses[a] == losses[b]}
    assert twins <= {("grpo, kl k3+", "grpo, kl k3"), ("gspo", "gspo_token")}


def test_a_duplicated_record_doubles_the_gradient(model: PreTrainedModel) -> None:
    (tree, double) = (merge(records) for records in (forking_records()[:1], forking_records()[:1] * 2))
    assert double.num_tree == tree.num_tree
    assert len(double.entries) == 2 * len(tree.entries)
    denominators = Denominators(num_tokens=1, num_trajectories=1, tokens_T=torch.ones(2))
    results = []
    for each in (tree, double):
        model.zero_grad()
        (row,) = pack([each], 1000)
        backward(model, row, denominators, CONFIGS["minirl"])
        results.append(gradients(model))
    assert relative_difference(results[1], {name: 2 * g for name, g in results[0].items()}) < TOLERANCE


def test_records_without_advantage_may_be_left_out_of_the_forward(model: PreTrainedModel) -> None:
    records = forking_records()
    idle = RecordBuilder("idle")
    idle.reply([0, 1, 2], idle.context([7, 8]), advantage=0.0)
    records.append(idle.build())
    for name in ("minirl", "grpo"):
        loss, everything = merged(model, [merge(records)], CONFIGS[name])
        dropped = merge(records, drop_zero_advantage=True)
        assert 2 not in dropped.entries.trajectory_E
        dropped_loss, found = merged(model, [dropped], CONFIGS[name])
        assert dropped_loss == pytest.approx(loss, rel=TOLERANCE)
        assert relative_difference(found, everything) < TOLERANCE


def test_an_untied_head_is_exact_too() -> None:
    untied = tiny_model(tied=False)
    with exact_norms(untied):
        records = forking_records()
        expected_loss, expected = one_by_one(untied, records, CONFIGS["grpo"])
        loss, found = merged(untied, [merge(records).at(STALENESS)], CONFIGS["grpo"])
    assert "lm_head.weight" in expected
    assert loss == pytest.approx(expected_loss, rel=TOLERANCE)
    assert relative_difference(found, expected) < TOLERANCE


def test_an_empty_row_runs_forward_and_backward_and_adds_nothing(model: PreTrainedModel) -> None:
    model.zero_grad()
    denominators = Denominators(num_tokens=5, num_trajectories=2, tokens_T=torch.tensor([3, 2]))
    for config in CONFIGS.values():
        assert backward(model, empty_row(), denominators, config) == 0.0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_padding_a_row_does_not_change_its_log_probs(model: PreTrainedModel) -> None:
    (row,) = pack([merge(forking_records())], 1000)
    plain_E, _ = row_logprobs(TreeLM(model), row)
    padded_E, _ = row_logprobs(TreeLM(model), row.padded(128))
    torch.testing.assert_close(padded_E, plain_E, rtol=1e-12, atol=1e-12)


def test_in_bfloat16_the_merged_forward_is_as_near_to_float64_as_one_forward_per_sequence(
    model: PreTrainedModel,
) -> None:
    groups = [random_group(seed) for seed in range(12)]
    low = tiny_model(dtype=torch.bfloat16)
    errors: dict[str, list[Tensor]] = {"merged": [], "one by one": []}
    with torch.no_grad():
        for records in groups:
            exact_E = torch.stack([t.new for tokens in logprobs_one_by_one(model, records) for t in tokens])
            alone_E = torch.stack([t.new.double() for tokens in logprobs_one_by_one(low, records) for t in tokens])
            (row,) = pack([merge(records)], 10_000)
            merged_E, _ = row_logprobs(TreeLM(low), row)
            errors["merged"].append(merged_E.double() - exact_E)
            errors["one by one"].append(alone_E - exact_E)
    merged, alone = (torch.cat(errors[name]).square().mean().sqrt() for name in ("merged", "one by one"))
    assert 1e-3 < merged < 1.5 * alone


def test_norms_are_restored_after_an_exact_run() -> None:
    made = tiny_model()
    with exact_norms(made):
        assert any("forward" in vars(module) for module in made.modules())
    assert not any("forward" in vars(module) for module in made.modules())
