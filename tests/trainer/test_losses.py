"""Each loss against its formula, written out token by token; and the rules about denominators that all of them keep."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.builders import Token
from tests.trainer.formulas import reference_loss
from trainer.loss_metrics import combine, report
from trainer.losses import Aggregation, Denominators, LossBatch, LossConfig, LossName, compute

LOSSES = [
    LossConfig(loss_calculater=LossName.MINIRL, importance_weight_cap_ratio=1.5),
    LossConfig(loss_calculater=LossName.MINIRL, token_level_loss=True),
    LossConfig(loss_calculater=LossName.MINIRL, length_scale=64.0),
    LossConfig(
        loss_calculater=LossName.MINIRL, strict_in_bound=False, importance_weight_cap_ratio=1.2, out_of_date_decay=0.3
    ),
    LossConfig(loss_calculater=LossName.GRPO),
    LossConfig(loss_calculater=LossName.GRPO, dual_clip=1.4),
    LossConfig(loss_calculater=LossName.GRPO, out_of_date_decay=0.5, skip_length_normalization=True),
    LossConfig(loss_calculater=LossName.CROSS_ENTROPY),
    LossConfig(loss_calculater=LossName.CROSS_ENTROPY, token_level_loss=False),
]


def batch(seed: int, num_entries: int = 40, num_trajectories: int = 5) -> tuple[LossBatch, Denominators]:
    generator = torch.Generator().manual_seed(seed)
    old_E = -3.0 * torch.rand(num_entries, generator=generator, dtype=torch.float64)
    new_E = old_E + 0.5 * torch.randn(num_entries, generator=generator, dtype=torch.float64)
    trajectory_E = torch.randint(0, num_trajectories, (num_entries,), generator=generator)
    trajectory_E[:num_trajectories] = torch.arange(num_trajectories)
    made = LossBatch(
        new_logprob_E=new_E.requires_grad_(),
        old_logprob_E=old_E,
        advantage_E=torch.randn(num_trajectories, generator=generator, dtype=torch.float64)[trajectory_E],
        trajectory_E=trajectory_E,
        turn_E=torch.randint(0, 3, (num_entries,), generator=generator),
        staleness_E=torch.tensor([0.0, 1.0, 2.0, 3.0, 5.0], dtype=torch.float64)[trajectory_E],
    )
    return made, Denominators.count(torch.bincount(trajectory_E, minlength=num_trajectories + 1))


def part(whole: LossBatch, index: Tensor) -> LossBatch:
    names = [field.name for field in dataclasses.fields(whole) if getattr(whole, field.name) is not None]
    return dataclasses.replace(whole, **{name: getattr(whole, name)[index] for name in names})


def as_tokens(whole: LossBatch, num_trajectories: int = 5) -> tuple[list[list[Token]], list[float]]:
    trajectories: list[list[Token]] = [[] for _ in range(num_trajectories)]
    staleness = [0.0] * num_trajectories
    for e, t in enumerate(whole.trajectory_E.tolist()):
        token = Token(whole.new_logprob_E[e], float(whole.old_logprob_E[e]), float(whole.advantage_E[e]), 0)
        trajectories[t].append(token)
        staleness[t] = float(whole.staleness_E[e])
    return trajectories, staleness


@pytest.mark.parametrize("config", LOSSES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_and_its_gradient_equal_the_formula_written_token_by_token(config: LossConfig, seed: int) -> None:
    whole, denominators = batch(seed)
    loss, _ = compute(whole, denominators, config)
    expected = reference_loss(*as_tokens(whole), config)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    (gradient,) = torch.autograd.grad(loss, whole.new_logprob_E)
    (expected_gradient,) = torch.autograd.grad(expected, whole.new_logprob_E)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-14)
    assert gradient.any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from(LOSSES))
def test_micro_batches_of_any_number_add_up_to_the_whole_step(seed: int, num_parts: int, config: LossConfig) -> None:
    whole, denominators = batch(seed)
    loss, metrics = compute(whole, denominators, config)
    owner_E = torch.randint(0, num_parts, whole.trajectory_E.shape, generator=torch.Generator().manual_seed(seed))
    parts = [compute(part(whole, owner_E == i), denominators, config) for i in range(num_parts)]
    total = torch.stack([loss for loss, _ in parts]).sum()
    torch.testing.assert_close(total, loss, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(x, whole.new_logprob_E)[0] for x in (total, loss)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert report(combine([m for _, m in parts])) == pytest.approx(report(metrics))


def test_clipping_a_token_does_not_make_the_others_count_more() -> None:
    whole, denominators = batch(0)
    config = LossConfig(loss_calculater=LossName.MINIRL, token_level_loss=True)
    kept = dataclasses.replace(
        whole, advantage_E=torch.ones_like(whole.advantage_E), old_logprob_E=whole.new_logprob_E.detach()
    )
    shift_E = torch.zeros_like(kept.old_logprob_E)
    shift_E[:10] = -1.0  # ten tokens now have ρ = e, beyond the bound
    clipped = dataclasses.replace(kept, old_logprob_E=kept.old_logprob_E + shift_E)
    (before_E,) = torch.autograd.grad(compute(kept, denominators, config)[0], kept.new_logprob_E)
    (after_E,) = torch.autograd.grad(compute(clipped, denominators, config)[0], kept.new_logprob_E)
    assert not after_E[:10].any()
    assert torch.equal(after_E[10:], before_E[10:])


def test_on_policy_all_policy_losses_have_the_plain_policy_gradient() -> None:
    whole, denominators = batch(1)
    whole = dataclasses.replace(whole, old_logprob_E=whole.new_logprob_E.detach().clone())
    for name in (LossName.MINIRL, LossName.GRPO):
        config = LossConfig(loss_calculater=name, token_level_loss=True)
        (gradient_E,) = torch.autograd.grad(compute(whole, denominators, config)[0], whole.new_logprob_E)
        torch.testing.assert_close(gradient_E, -whole.advantage_E / len(gradient_E), rtol=1e-12, atol=1e-14)


def test_the_importance_weight_is_a_constant_for_the_gradient_of_minirl() -> None:
    whole, denominators = batch(2)
    config = LossConfig(loss_calculater=LossName.MINIRL, epsilon=1.0, epsilon_higher=100.0)
    (gradient_E,) = torch.autograd.grad(compute(whole, denominators, config)[0], whole.new_logprob_E)
    weight_E = (whole.new_logprob_E - whole.old_logprob_E).exp().clamp(max=5.0).detach()
    expected_E = -weight_E * whole.advantage_E / denominators.num_trajectories
    torch.testing.assert_close(gradient_E, expected_E, rtol=1e-12, atol=1e-14)


def test_age_narrows_the_clip_range_and_loose_bounds_widen_it() -> None:
    def clipped(ratio: float, staleness: float, config: LossConfig) -> bool:
        entry = torch.zeros(1, dtype=torch.float64)
        made = LossBatch(
            new_logprob_E=(entry + math.log(ratio)).requires_grad_(),
            old_logprob_E=entry,
            advantage_E=entry + (1.0 if ratio > 1 else -1.0),
            trajectory_E=torch.zeros(1, dtype=torch.int64),
            turn_E=torch.zeros(1, dtype=torch.int64),
            staleness_E=entry + staleness,
        )
        (gradient_E,) = torch.autograd.grad(
            compute(made, Denominators.count(torch.ones(1)), config)[0], made.new_logprob_E
        )
        return not gradient_E.any()

    strict = LossConfig()
    assert [clipped(r, 9.0, strict) for r in (1.26, 1.28, 0.81, 0.79)] == [False, True, False, True]
    aging = LossConfig(out_of_date_decay=math.log(2.0))
    assert [clipped(r, 1.0, aging) for r in (1.13, 1.14, 0.91, 0.89)] == [False, True, False, True]
    loose = LossConfig(strict_in_bound=False, importance_weight_cap_ratio=2.0)
    assert [clipped(r, 0.0, loose) for r in (1.53, 1.55, 0.61, 0.59)] == [False, True, False, True]


def test_an_enormous_log_ratio_stays_finite_in_float32() -> None:
    whole, denominators = batch(3)
    new_E = torch.full((40,), -1.0, requires_grad=True)
    extreme = dataclasses.replace(
        whole, new_logprob_E=new_E, old_logprob_E=torch.full((40,), -500.0), advantage_E=whole.advantage_E.float()
    )
    for name in LossName:
        loss, metrics = compute(extreme, denominators, LossConfig(loss_calculater=name))
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        assert torch.autograd.grad(loss, new_E)[0].isfinite().all()
        assert all(math.isfinite(value) for value in report(metrics).values())


@pytest.mark.parametrize("config", LOSSES, ids=str)
def test_no_entries_give_a_loss_of_zero_that_can_be_differentiated(config: LossConfig) -> None:
    whole, denominators = batch(0)
    nothing = part(whole, torch.zeros(0, dtype=torch.int64))
    loss, metrics = compute(nothing, denominators, config)
    loss.backward()
    assert loss.item() == 0.0
    assert report(metrics) == {"loss/loss": 0.0, "loss/trained_tokens": 0.0}


def test_a_trajectory_without_trained_tokens_is_no_sequence() -> None:
    assert Denominators.count(torch.tensor([3, 0, 2])).num_trajectories == 2


def test_each_loss_averages_as_its_source_does_unless_told_otherwise() -> None:
    def aggregation(name: LossName, token: bool | None = None, skip: bool | None = None) -> Aggregation:
        return LossConfig(loss_calculater=name, token_level_loss=token, skip_length_normalization=skip).aggregation

    assert [aggregation(name) for name in LossName] == [
        Aggregation.SEQUENCE_SUM,
        Aggregation.SEQUENCE_MEAN,
        Aggregation.TOKEN_MEAN,
    ]
    assert aggregation(LossName.GRPO, skip=True) is Aggregation.SEQUENCE_SUM
    assert aggregation(LossName.MINIRL, skip=False) is Aggregation.SEQUENCE_MEAN
    assert aggregation(LossName.MINIRL, token=True, skip=True) is Aggregation.TOKEN_MEAN


@pytest.mark.parametrize(
    "setting",
    [
        {"epsilon": 0.0},
        {"epsilon_higher": -1.0},
        {"importance_weight_cap_ratio": 0.5},
        {"out_of_date_decay": -1.0},
        {"dual_clip": 1.0},
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(setting: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        LossConfig(**setting)  # type: ignore[arg-type]  # one float setting at a time


def test_the_report_means_what_it_says() -> None:
    whole, denominators = batch(4)
    whole = dataclasses.replace(whole, entropy_E=torch.full((40,), 0.25))
    ratio_E = (whole.new_logprob_E - whole.old_logprob_E).exp().detach()
    positive_E, negative_E = whole.advantage_E > 0, whole.advantage_E < 0
    loss, metrics = compute(whole, denominators, LossConfig())
    found = report(metrics)
    expected = {
        "loss/loss": loss.item(),
        "loss/trained_tokens": 40.0,
        "loss/ratio_mean": ratio_E.mean(),
        "loss/ratio_max": ratio_E.max(),
        "loss/k1_mean": -ratio_E.log().mean(),
        "loss/k3_mean": (ratio_E - 1 - ratio_E.log()).mean(),
        "loss/mismatch_mean_nats": ratio_E.log().abs().mean(),
        "loss/mismatch_later_turns_mean_nats": ratio_E.log().abs()[whole.turn_E > 0].mean(),
        "loss/mismatch_max_nats": ratio_E.log().abs().max(),
        "loss/logprob_mean_nats": whole.new_logprob_E.mean().item(),
        "loss/staleness_mean_steps": whole.staleness_E.mean(),
        "loss/staleness_max_steps": 5.0,
        "loss/entropy_mean_nats": 0.25,
        "loss/clipped_high_fraction": (ratio_E[positive_E] > 1.27).double().mean(),
        "loss/clipped_low_fraction": (ratio_E[negative_E] < 0.8).double().mean(),
        "loss/capped_fraction": (ratio_E > 5.0).double().mean(),
        "loss/ess_fraction": ratio_E.sum() ** 2 / (40 * ratio_E.square().sum()),
    }
    assert found == pytest.approx({key: float(value) for key, value in expected.items()})
