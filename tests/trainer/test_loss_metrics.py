"""What a step reports means what it says, for the whole and for its parts, however rows and ranks were divided."""

import dataclasses
import math

import pytest
import torch

from shared.engine_mismatch import by_engine, engine_number
from tests.trainer.loss_cases import LOSSES
from tests.trainer.test_losses import ENGINES, batch, part
from trainer.losses import LossBatch, LossConfig, Outcome, compute
from trainer.reporting.loss_metrics import Measured, combine, measure, of_updates, report

NAMED = {engine_number(url): url for url in ENGINES}
SOURCES = ["math", "search", "math", "search", "math"]


def measured(whole: LossBatch, index: torch.Tensor | None = None, loss: LossConfig | None = None) -> Measured:
    """Of whole trajectories of a batch."""
    loss = loss or LossConfig()
    _, denominators = batch(0)
    some = whole if index is None else part(whole, index)
    _, outcome = compute(some, denominators, loss)
    return measure(some.detached(), outcome, denominators, loss, SOURCES, NAMED)


def test_the_report_means_what_it_says() -> None:
    whole, _ = batch(0)
    whole = dataclasses.replace(whole, proximal_logprob_E=None)
    found = report(measured(whole))
    new_E, old_E, advantage_E = whole.new_logprob_E.detach(), whole.old_logprob_E, whole.advantage_E
    ratio_E = (new_E - old_E).exp()
    log_E, positive_E, negative_E = ratio_E.log(), advantage_E > 0, advantage_E < 0
    beyond_E = (positive_E & (ratio_E > 1.27)) | (negative_E & (ratio_E < 0.8))
    by_trajectory = [log_E[whole.trajectory_E == t] for t in range(5)]
    geometric = torch.stack([logs.mean() for logs in by_trajectory]).exp()
    expected = {
        "loss/loss": compute(whole, batch(0)[1], LossConfig())[0].item(),
        "loss/trained_tokens": 60.0,
        "loss/ratio_mean": ratio_E.mean(),
        "loss/ratio_max": ratio_E.max(),
        "loss/ratio_min": ratio_E.min(),
        "loss/k1_mean": -log_E.mean(),
        "loss/k3_mean": (ratio_E - 1 - log_E).mean(),
        "loss/mismatch_mean_nats": log_E.abs().mean(),
        "loss/mismatch_later_turns_mean_nats": log_E.abs()[whole.turn_E > 0].mean(),
        "loss/mismatch_max_nats": log_E.abs().max(),
        "loss/probability_change_mean": (new_E.exp() - old_E.exp()).abs().mean(),
        "loss/far_off_fraction": ((ratio_E < 0.5) | (ratio_E > 2.0)).double().mean(),
        "loss/logprob_mean_nats": new_E.mean(),
        "loss/logprob_positive_mean_nats": new_E[positive_E].mean(),
        "loss/logprob_negative_mean_nats": new_E[negative_E].mean(),
        "loss/rollout_logprob_mean_nats": old_E.mean(),
        "loss/min_probability": new_E.exp().min(),
        "loss/staleness_mean_steps": whole.staleness_E.mean(),
        "loss/staleness_max_steps": 5.0,
        "loss/entropy_mean_nats": whole.entropy_E.mean().detach(),
        "loss/clipped_high_fraction": (ratio_E[positive_E] > 1.27).double().mean(),
        "loss/clipped_low_fraction": (ratio_E[negative_E] < 0.8).double().mean(),
        "loss/clipped_fraction": beyond_E.double().mean(),
        "loss/capped_fraction": (ratio_E > 5.0).double().mean(),
        "loss/ess_fraction": ratio_E.sum() ** 2 / (60 * ratio_E.square().sum()),
        "loss/chi2_token": ratio_E.square().mean() - 1,
        "loss/chi2_sequence": torch.stack([(2 * logs.sum()).exp() for logs in by_trajectory]).mean() - 1,
        "loss/sequence_ratio_p05": geometric.quantile(0.05),
        "loss/sequence_ratio_p50": geometric.median(),
        "loss/sequence_ratio_p95": geometric.quantile(0.95),
        "loss/kl_to_entropy_ratio": (ratio_E - 1 - log_E).sum() / whole.entropy_E.sum().detach(),
        "loss/sequence_log_ratio_mean_nats": torch.stack([logs.sum() for logs in by_trajectory]).mean(),
        "loss/log_ppl_difference_mean": -geometric.log().mean(),
        "loss/log_ppl_difference_max": geometric.log().abs().max(),
        "loss/ppl_train": torch.stack([(-new_E[whole.trajectory_E == t].mean()).exp() for t in range(5)]).mean(),
        "loss/ppl_rollout": torch.stack([(-old_E[whole.trajectory_E == t].mean()).exp() for t in range(5)]).mean(),
        "loss/masked_fraction": 0.0,
        "loss/masked_sequence_fraction": 0.0,
        "loss_by_turn/1/min_probability": new_E.exp()[whole.turn_E == 1].min(),
        "loss_by_staleness/3/k3_mean": (ratio_E - 1 - log_E)[whole.staleness_E == 3].mean(),
        "loss_by_staleness/3/trained_tokens": (whole.staleness_E == 3).sum(),
        "loss_by_source/search/entropy_mean_nats": whole.entropy_E[whole.trajectory_E % 2 == 1].mean().detach(),
    }
    wanted = {key: float(value) for key, value in expected.items()}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted)
    p99 = float(log_E.abs().quantile(0.99, interpolation="higher"))
    assert found["loss/mismatch_p99_nats"] == pytest.approx(p99, rel=0.06)
    for area, names in (
        ("staleness", ["0", "1", "2", "3", "4"]),
        ("source", ["math", "search"]),
        ("turn", ["0", "1", "2"]),
    ):
        tokens = [found[f"loss_by_{area}/{name}/trained_tokens"] for name in names]
        assert sum(tokens) == 60, area


def test_masks_the_proximal_policy_and_the_reference_have_their_own_numbers() -> None:
    whole, _ = batch(0)
    found = report(measured(whole, loss=LOSSES["icepop"]))
    assert whole.proximal_logprob_E is not None
    assert whole.reference_logprob_E is not None
    mismatch_E = whole.proximal_logprob_E - whole.old_logprob_E
    x_E = mismatch_E.exp()
    outside_E = (x_E < 0.8) | (x_E > 1.4)
    k3_E = x_E - 1 - mismatch_E
    difference_E = (whole.new_logprob_E - whole.reference_logprob_E).detach()
    expected = {
        "loss/mismatch_mean_nats": mismatch_E.abs().mean(),
        "loss/masked_fraction": outside_E.double().mean(),
        "loss/k3_masked_mean": k3_E[outside_E].mean(),
        "loss/k3_kept_mean": k3_E[~outside_E].mean(),
        "loss/masked_token_fraction": outside_E.double().mean(),
        "loss/update_kl_mean_nats": (whole.proximal_logprob_E - whole.new_logprob_E).mean().detach(),
        "loss/reference_kl_mean_nats": ((-difference_E).exp() + difference_E - 1).clamp(max=10).mean(),
    }
    wanted = {key: float(value) for key, value in expected.items()}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_a_fraction_lies_between_0_and_1_where_advantages_differ_within_a_trajectory(loss: LossConfig) -> None:
    """GSPO's bound is that of a trajectory's mean advantage: here one token in twenty has the sign of the mean."""
    whole, _ = batch(0)
    assert whole.proximal_logprob_E is not None
    advantage_E = torch.where(torch.arange(60) % 20 == 0, 50.0, -0.1).double()
    for sign in (1.0, -1.0):
        shifted = dataclasses.replace(
            whole,
            advantage_E=sign * advantage_E,
            old_logprob_E=whole.old_logprob_E - sign,
            proximal_logprob_E=whole.proximal_logprob_E - sign,
        )
        found = report(measured(shifted, loss=loss))
        assert {name: value for name, value in found.items() if "fraction" in name and not 0.0 <= value <= 1.0} == {}


def test_the_loss_of_several_updates_is_their_mean() -> None:
    whole, _ = batch(0)
    one = measured(whole)
    several, single = report(of_updates([one, one, one])), report(one)
    assert several["loss/trained_tokens"] == 3 * single["loss/trained_tokens"]
    for name in ("loss/loss", "loss/policy_loss", "loss/ratio_mean", "loss/clipped_high_fraction"):
        assert several[name] == pytest.approx(single[name]), name


def test_ranks_that_hold_other_trajectories_sources_and_ages_combine_to_the_whole() -> None:
    whole, _ = batch(0)
    parts = [measured(whole, torch.nonzero(whole.trajectory_E % 3 == k)[:, 0]) for k in range(3)]
    nothing = measured(whole, torch.zeros(0, dtype=torch.int64))
    assert report(combine([nothing, *parts])) == pytest.approx(report(measured(whole)))


def test_a_step_without_a_token_reports_no_means() -> None:
    whole, _ = batch(0)
    assert report(measured(whole, torch.zeros(0, dtype=torch.int64))) == {"loss/loss": 0.0, "loss/trained_tokens": 0.0}
    assert report(combine([Measured(), Measured()])) == {"loss/loss": 0.0, "loss/trained_tokens": 0.0}


def test_extreme_ratios_give_finite_numbers() -> None:
    whole, _ = batch(0)
    extreme = dataclasses.replace(whole, old_logprob_E=torch.full((60,), -500.0, dtype=torch.float64))
    assert all(math.isfinite(value) for value in report(measured(extreme)).values())


def test_parts_that_were_measured_row_by_row_are_one_batch() -> None:
    whole, denominators = batch(0)
    rows = [part(whole, index) for index in torch.arange(60).chunk(4)]
    outcomes = [compute(row, denominators, LossConfig())[1] for row in rows]
    joined = LossBatch.concatenate([row.detached() for row in rows])
    found = measure(joined, Outcome.concatenate(outcomes), denominators, LossConfig(), SOURCES, NAMED)
    assert report(found) == pytest.approx(report(measured(whole)))


def test_the_mismatch_is_split_by_engine_where_several_sampled_and_only_there() -> None:
    whole, _ = batch(0)
    whole = dataclasses.replace(whole, proximal_logprob_E=None)
    log_E = (whole.new_logprob_E - whole.old_logprob_E).detach()
    found = report(measured(whole))
    rows = {row.engine: row for row in by_engine([found])}
    assert [*rows] == ["gpu1:30000", "gpu2:30000"]
    for url, row in zip(ENGINES, rows.values(), strict=True):
        own_E = whole.engine_E == engine_number(url)
        assert row.tokens == own_E.sum()
        assert row.mismatch == pytest.approx(log_E[own_E].abs().mean())
        assert row.k3 == pytest.approx((log_E.exp() - 1 - log_E)[own_E].mean())
        assert row.staleness == pytest.approx(whole.staleness_E[own_E].mean())
    assert sum(name.startswith("loss_by_engine/") for name in found) == 2 * 4
    of_one = report(measured(part(whole, torch.nonzero(whole.engine_E == engine_number(ENGINES[0]))[:, 0])))
    assert not [name for name in of_one if name.startswith("loss_by_engine/")], (
        "the step's own mismatch is the engine's"
    )
    shares = report(combine([measured(part(whole, index)) for index in torch.arange(60).chunk(4)]))
    assert {name: shares[name] for name in found if name.startswith("loss_by_engine/")} == pytest.approx(
        {name: value for name, value in found.items() if name.startswith("loss_by_engine/")}
    ), "however ranks divide the entries"
