"""Each loss against its formula, written out token by token; and the rules about denominators that all of them keep."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from shared.engine_mismatch import engine_number
from tests.trainer.builders import Token
from tests.trainer.formulas import reference_loss
from tests.trainer.loss_cases import LOSSES, SEQUENCE_WISE, TOKEN_WISE, config
from trainer.losses import Aggregation, Denominators, LossBatch, LossConfig, LossName, compute

STALENESS = [0.0, 1.0, 2.0, 3.0, 5.0]
ENGINES = ("http://gpu1:30000", "https://gpu2:30000")  # two tokens of the first to one of the second
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def batch(seed: int, num_entries: int = 60, num_trajectories: int = 5) -> tuple[LossBatch, Denominators]:
    """Random entries with everything that any loss asks for; advantages differ between the turns of a trajectory."""
    generator = torch.Generator().manual_seed(seed)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(num_entries, generator=generator, dtype=torch.float64)

    trajectory_E = torch.randint(0, num_trajectories, (num_entries,), generator=generator)
    trajectory_E[:num_trajectories] = torch.arange(num_trajectories)
    turn_E = torch.randint(0, 3, (num_entries,), generator=generator)
    shift_T = 0.15 * torch.randn(num_trajectories, generator=generator, dtype=torch.float64)
    old_E = -3.0 * torch.rand(num_entries, generator=generator, dtype=torch.float64)
    proximal_E = old_E + noise(0.3) + shift_T[trajectory_E]
    advantage_TU = torch.randn(num_trajectories, 3, generator=generator, dtype=torch.float64)
    advantage_TU = advantage_TU[:, :1] + 0.2 * advantage_TU
    made = LossBatch(
        new_logprob_E=(proximal_E + noise(0.3)).requires_grad_(),
        old_logprob_E=old_E,
        advantage_E=advantage_TU[trajectory_E, turn_E],
        trajectory_E=trajectory_E,
        turn_E=turn_E,
        staleness_E=torch.tensor(STALENESS, dtype=torch.float64)[
            torch.randint(0, len(STALENESS), (num_entries,), generator=generator)
        ],
        engine_E=torch.tensor([engine_number(url) for url in ENGINES])[torch.arange(num_entries) % 3 // 2],
        entropy_E=torch.rand(num_entries, generator=generator, dtype=torch.float64).requires_grad_(),
        proximal_logprob_E=proximal_E,
        reference_logprob_E=old_E + noise(0.5),
    )
    return made, Denominators.count(torch.bincount(trajectory_E, minlength=num_trajectories + 1))


def part(whole: LossBatch, index: Tensor) -> LossBatch:
    names = [field.name for field in dataclasses.fields(whole) if getattr(whole, field.name) is not None]
    return dataclasses.replace(whole, **{name: getattr(whole, name)[index] for name in names})


def as_tokens(whole: LossBatch, num_trajectories: int = 5) -> list[list[Token]]:
    assert whole.entropy_E is not None
    assert whole.reference_logprob_E is not None
    trajectories: list[list[Token]] = [[] for _ in range(num_trajectories)]
    for e, t in enumerate(whole.trajectory_E.tolist()):
        token = Token(
            whole.new_logprob_E[e],
            float(whole.old_logprob_E[e]),
            float(whole.advantage_E[e]),
            0,
            whole.entropy_E[e],
            None if whole.proximal_logprob_E is None else float(whole.proximal_logprob_E[e]),
            float(whole.reference_logprob_E[e]),
            float(whole.staleness_E[e]),
        )
        trajectories[t].append(token)
    return trajectories


def gradients(loss: Tensor, whole: LossBatch) -> Tensor:
    """Of log-probs and entropies, one after the other."""
    assert whole.entropy_E is not None
    inputs = (whole.new_logprob_E, whole.entropy_E)
    found = torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True)
    return torch.cat([torch.zeros_like(whole.new_logprob_E) if g is None else g for g in found])


@every_loss
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_and_its_gradient_equal_the_formula_written_token_by_token(loss: LossConfig, seed: int) -> None:
    whole, denominators = batch(seed)
    found, _ = compute(whole, denominators, loss)
    expected = reference_loss(as_tokens(whole), loss)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients(found, whole), gradients(expected, whole), rtol=1e-12, atol=1e-14)
    assert gradients(found, whole).any()


@pytest.mark.parametrize("loss", [c for c in LOSSES.values() if c.clip_anchor == "proximal"], ids=str)
def test_in_the_first_update_of_a_batch_the_new_log_probs_are_the_proximal_ones(loss: LossConfig) -> None:
    whole, denominators = batch(0)
    first = dataclasses.replace(whole, proximal_logprob_E=None)
    found, outcome = compute(first, denominators, loss)
    expected = reference_loss(as_tokens(first), loss)
    torch.testing.assert_close(gradients(found, first), gradients(expected, first), rtol=1e-12, atol=1e-14)
    if loss.proximal_logprobs == "recompute":
        assert not (outcome.too_high_E | outcome.too_low_E).any(), "r is 1"


@pytest.mark.parametrize("name", ["opsm", "opsm, proximal"])
def test_off_policy_sequence_masking_looks_at_the_policy_that_sampled(name: str) -> None:
    """With every clip anchor: in the first update of a batch the proximal policy is the new one, and would mask nothing."""
    whole, denominators = batch(0)
    first = dataclasses.replace(whole, proximal_logprob_E=None)
    _, outcome = compute(first, denominators, LOSSES[name])
    drift_E = first.old_logprob_E - first.new_logprob_E.detach()
    means = torch.stack([drift_E[first.trajectory_E == t].mean() for t in range(5)])
    expected_E = (first.advantage_E < 0) & (means[first.trajectory_E] > 0.01)
    assert expected_E.any()
    assert torch.equal(outcome.dropped_sequence_E, expected_E)


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("minirl", "too_high_E"),
        ("minirl", "too_low_E"),
        ("cispo", "too_high_E"),
        ("dppo", "too_high_E"),
        ("dppo", "too_low_E"),
        ("aspo", "too_high_E"),
        ("gspo", "too_high_E"),
        ("gspo_token", "too_low_E"),
        ("decoupled_ppo", "dropped_token_E"),
        ("icepop", "dropped_token_E"),
        ("sequence mask", "dropped_sequence_E"),
        ("geometric mask", "dropped_sequence_E"),
        ("k3 mask", "dropped_sequence_E"),
        ("veto", "dropped_sequence_E"),
        ("opsm", "dropped_sequence_E"),
        ("proximal masks", "dropped_sequence_E"),
    ],
)
def test_the_random_data_takes_both_sides_of_every_decision(name: str, mark: str) -> None:
    marks = torch.cat([getattr(compute(*batch(seed), LOSSES[name])[1], mark) for seed in range(3)])
    assert marks.any()
    assert not marks.all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from(list(TOKEN_WISE)))
def test_splitting_a_step_into_rows_changes_neither_loss_nor_gradient(seed: int, num_parts: int, name: str) -> None:
    whole, denominators = batch(seed)
    loss, _ = compute(whole, denominators, LOSSES[name])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    parts = [compute(part(whole, index), denominators, LOSSES[name])[0] for index in order.chunk(num_parts)]
    total = torch.stack(parts).sum()
    torch.testing.assert_close(total, loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradients(total, whole), gradients(loss, whole), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", SEQUENCE_WISE.values(), ids=SEQUENCE_WISE.keys())
def test_a_loss_of_whole_trajectories_refuses_a_part_of_one_and_takes_them_apart(loss: LossConfig) -> None:
    whole, denominators = batch(0)
    assert loss.needs_whole_trajectories
    with pytest.raises(ValueError, match=r"trajectory \d: \d+ of its \d+ trained tokens"):
        compute(part(whole, torch.arange(59)), denominators, loss)
    total = torch.stack(
        [compute(part(whole, (whole.trajectory_E == t).nonzero()[:, 0]), denominators, loss)[0] for t in range(5)]
    ).sum()
    expected, _ = compute(whole, denominators, loss)
    torch.testing.assert_close(gradients(total, whole), gradients(expected, whole), rtol=1e-12, atol=1e-14)


def test_clipping_a_token_does_not_make_the_others_count_more() -> None:
    whole, denominators = batch(0)
    loss = config(token_level_loss=True)
    kept = dataclasses.replace(
        whole, advantage_E=torch.ones_like(whole.advantage_E), old_logprob_E=whole.new_logprob_E.detach()
    )
    shift_E = torch.zeros_like(kept.old_logprob_E)
    shift_E[:10] = -1.0  # ten tokens now have ρ = e, beyond the bound
    clipped = dataclasses.replace(kept, old_logprob_E=kept.old_logprob_E + shift_E)
    (before_E,) = torch.autograd.grad(compute(kept, denominators, loss)[0], kept.new_logprob_E)
    (after_E,) = torch.autograd.grad(compute(clipped, denominators, loss)[0], kept.new_logprob_E)
    assert not after_E[:10].any()
    assert torch.equal(after_E[10:], before_E[10:])


def test_a_mask_drops_the_policy_term_and_neither_denominators_nor_regularizers() -> None:
    whole, denominators = batch(0)
    plain = {"loss": "GRPO", "kl_coefficient": 0.2, "entropy_coefficient": 0.1}
    nothing_kept, _ = compute(whole, denominators, config(**plain, token_mask_high=1e-6))
    zeroed = dataclasses.replace(whole, advantage_E=torch.zeros_like(whole.advantage_E))
    regularizers, _ = compute(zeroed, denominators, config(**plain))
    torch.testing.assert_close(nothing_kept, regularizers)


@pytest.mark.parametrize("name", [n for n in LossName if n is not LossName.CROSS_ENTROPY])
def test_on_policy_all_policy_losses_have_the_plain_policy_gradient(name: LossName) -> None:
    whole, denominators = batch(1)
    on_policy = dataclasses.replace(
        whole,
        old_logprob_E=whole.new_logprob_E.detach().clone(),
        advantage_E=torch.tensor([1.0, -0.5, 2.0, -1.0, 0.3], dtype=torch.float64)[whole.trajectory_E],
    )
    loss = LossConfig(loss=name, token_level_loss=False, skip_length_normalization=False)
    (gradient_E,) = torch.autograd.grad(compute(on_policy, denominators, loss)[0], whole.new_logprob_E)
    expected_E = -on_policy.advantage_E / 5 / denominators.tokens_T[whole.trajectory_E]
    torch.testing.assert_close(gradient_E, expected_E, rtol=1e-12, atol=1e-14)


def test_the_gradient_of_gspo_raises_what_was_good() -> None:
    """The sign error of `logp / logp.detach()`, whose gradient has the opposite sign since log-probs are negative."""
    whole, denominators = batch(2)
    wide = {"epsilon": 1.0, "epsilon_higher": 100.0}
    good = dataclasses.replace(whole, advantage_E=torch.ones_like(whole.advantage_E))
    for name in (LossName.GSPO, LossName.GSPO_TOKEN):
        (gradient_E,) = torch.autograd.grad(
            compute(good, denominators, LossConfig(loss=name, **wide))[0], good.new_logprob_E
        )
        assert (gradient_E < 0).all()


def test_the_importance_weight_is_a_constant_for_the_gradient_of_minirl() -> None:
    whole, denominators = batch(2)
    loss = config(epsilon=1.0, epsilon_higher=100.0)
    (gradient_E,) = torch.autograd.grad(compute(whole, denominators, loss)[0], whole.new_logprob_E)
    weight_E = (whole.new_logprob_E - whole.old_logprob_E).exp().clamp(max=5.0).detach()
    expected_E = -weight_E * whole.advantage_E / denominators.num_trajectories
    torch.testing.assert_close(gradient_E, expected_E, rtol=1e-12, atol=1e-14)


def test_age_narrows_the_clip_range_and_loose_bounds_widen_it() -> None:
    def clipped(ratio: float, staleness: float, loss: LossConfig) -> bool:
        entry = torch.zeros(1, dtype=torch.float64)
        made = LossBatch(
            new_logprob_E=(entry + math.log(ratio)).requires_grad_(),
            old_logprob_E=entry,
            advantage_E=entry + (1.0 if ratio > 1 else -1.0),
            trajectory_E=torch.zeros(1, dtype=torch.int64),
            turn_E=torch.zeros(1, dtype=torch.int64),
            staleness_E=entry + staleness,
            engine_E=torch.zeros(1, dtype=torch.int64),
        )
        (gradient_E,) = torch.autograd.grad(
            compute(made, Denominators.count(torch.ones(1)), loss)[0], made.new_logprob_E
        )
        return not gradient_E.any()

    strict = LossConfig()
    assert [clipped(r, 9.0, strict) for r in (1.26, 1.28, 0.81, 0.79)] == [False, True, False, True]
    aging = config(out_of_date_decay=math.log(2.0))
    assert [clipped(r, 1.0, aging) for r in (1.13, 1.14, 0.91, 0.89)] == [False, True, False, True]
    loose = config(strict_in_bound=False, importance_weight_cap_ratio=2.0)
    assert [clipped(r, 0.0, loose) for r in (1.53, 1.55, 0.61, 0.59)] == [False, True, False, True]


@every_loss
def test_an_enormous_log_ratio_stays_finite_in_float32(loss: LossConfig) -> None:
    whole, denominators = batch(3)
    new_E = torch.full((60,), -1.0, requires_grad=True)
    extreme = dataclasses.replace(
        whole,
        new_logprob_E=new_E,
        old_logprob_E=torch.full((60,), -500.0),
        advantage_E=whole.advantage_E.float(),
        entropy_E=torch.ones(60),
    )
    found, _ = compute(extreme, denominators, loss)
    assert found.dtype == torch.float32
    assert found.isfinite()
    assert torch.autograd.grad(found, new_E)[0].isfinite().all()


@every_loss
def test_no_entries_give_a_loss_of_zero_that_can_be_differentiated(loss: LossConfig) -> None:
    whole, denominators = batch(0)
    found, _ = compute(part(whole, torch.zeros(0, dtype=torch.int64)), denominators, loss)
    found.backward()
    assert found.item() == 0.0


def test_a_trajectory_without_trained_tokens_is_no_sequence() -> None:
    assert Denominators.count(torch.tensor([3, 0, 2])).num_trajectories == 2


def test_each_loss_averages_as_its_source_does_unless_told_otherwise() -> None:
    def aggregation(name: LossName, token: bool | None = None, skip: bool | None = None) -> Aggregation:
        return LossConfig(loss=name, token_level_loss=token, skip_length_normalization=skip).aggregation

    sums, means, tokens = Aggregation.SEQUENCE_SUM, Aggregation.SEQUENCE_MEAN, Aggregation.TOKEN_MEAN
    assert {name: aggregation(name) for name in LossName} == {
        LossName.MINIRL: sums,
        LossName.GRPO: means,
        LossName.GSPO: means,
        LossName.GSPO_TOKEN: means,
        LossName.CISPO: tokens,
        LossName.REINFORCE: tokens,
        LossName.DPPO: tokens,
        LossName.SAPO: means,
        LossName.ASPO: means,
        LossName.CROSS_ENTROPY: tokens,
    }
    assert aggregation(LossName.GRPO, skip=True) is sums
    assert aggregation(LossName.MINIRL, skip=False) is means
    assert aggregation(LossName.MINIRL, token=True, skip=True) is tokens
    assert config(token_level_loss=True, loss_aggregation="token-sum").aggregation is Aggregation.TOKEN_SUM


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 1.5}, "epsilon is 1.5; expected at most 1"),
        ({"epsilon_higher": -1.0}, "epsilon_higher"),
        ({"importance_weight_cap_ratio": 0.5}, "importance_weight_cap_ratio"),
        ({"out_of_date_decay": -1.0}, "out_of_date_decay"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"rollout_is": "token"}, "MINIRL with clip_anchor rollout has that ratio in it already"),
        ({"loss": "GRPO", "rollout_is": "token"}, "expected rollout_is none, or clip_anchor proximal"),
        ({"loss": "SAPO", "clip_anchor": "proximal"}, "SAPO is defined on the rollout policy"),
        ({"loss": "CrossEntropy", "veto_low": 0.1}, "veto_low: CrossEntropy does not look"),
        ({"kl_estimator": "k4"}, "kl_estimator"),
        (
            {"geometric_mask_low": 1.01, "geometric_mask_high": 0.99},
            "geometric_mask_low is 1.01 .* expected low < high",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LossConfig(**setting)
