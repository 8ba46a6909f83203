"""Token metrics of a step: the mismatch between trained and sampling policy, and the effect of clipping and masking.

Measured over every trained token, before clipping and masking, for the whole step (`loss/…`) and by the task's source, by
staleness and by turn (`loss_by_source/math/…`), and, if several engines sampled them, by engine. Each part consists of sums,
maxima and a few values per trajectory, so that rows and ranks are combined before any division.

    ρ = exp(ℓ − μ), trainer against sampler; x the same for the proximal policy if the loss has one, else ρ
    k1, k3 estimate KL(sampler ‖ trainer) from x (http://joschu.net/blog/kl-approx.html, with k3 = x − 1 − log x)
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shared.engine_mismatch import AREA as BY_ENGINE
from shared.engine_mismatch import engine_name
from trainer.losses import Denominators, LossBatch, LossConfig, Outcome
from trainer.losses.kl import kl_terms
from trainer.losses.ratios import exp_ratio, trajectory_sum
from trainer.settings.loss import KlEstimator

BUCKETS = (0, 1, 2, 3, 4, 8, 16, 32, 64)  # of turns and of staleness: a bucket is named after its first
HISTOGRAM = torch.logspace(-7, math.log10(20.0), 400, dtype=torch.float64)  # edges of |log x|: 4.9 % apart


@dataclass(frozen=True, slots=True)
class Measured:
    """Plain numbers by name; `per_trajectory` has one value per trajectory with a trained token."""

    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    per_trajectory: dict[str, list[float]] = field(default_factory=dict)
    histogram: list[float] = field(default_factory=list)


@torch.no_grad()
def measure(
    batch: LossBatch,
    outcome: Outcome,
    denominators: Denominators,
    config: LossConfig,
    sources_T: Sequence[str] | None = None,
    engines: Mapping[int, str] | None = None,
) -> Measured:
    """The metrics of these entries, which are complete trajectories and may be empty. `sources_T`: source per trajectory;
    `engines`: URL by number."""
    columns = _columns(batch, outcome, config)
    peaks = {name: columns[name] for name in ("ratio", "mismatch", "staleness")}
    peaks |= {"inverse_ratio": 1.0 / columns["ratio"], "surprise": -columns["logprob"]}
    everything = torch.ones_like(columns["ratio"], dtype=torch.bool)
    sums, maxima = _reduced("loss", columns, peaks, everything)
    for number, url in (engines or {}).items():
        own = {name: columns[name] for name in ENGINE_COLUMNS}
        sums |= _reduced(f"{BY_ENGINE}/{engine_name(url)}", own, {}, batch.engine_E == number)[0]
    for area, index_E in _parts(batch, sources_T):
        more_sums, more_maxima = _reduced(area, columns, peaks, index_E)
        sums |= {name: value for name, value in more_sums.items() if name.rpartition("/")[2] in PART_COLUMNS}
        maxima |= {name: value for name, value in more_maxima.items() if name.rpartition("/")[2] in PART_PEAKS}
    bins = torch.bucketize(columns["mismatch"].double().cpu(), HISTOGRAM)
    histogram = torch.bincount(bins, minlength=len(HISTOGRAM) + 1).double().tolist()
    return Measured(sums, maxima, _per_trajectory(batch, outcome, denominators), histogram)


def _columns(batch: LossBatch, outcome: Outcome, config: LossConfig) -> dict[str, Tensor]:
    """One column per averaged number; counts of entries are columns of ones."""
    new_E, old_E = batch.new_logprob_E, batch.old_logprob_E.to(batch.new_logprob_E.dtype)
    log_rho_E, log_x_E = new_E - old_E, outcome.log_mismatch_E
    rho_E, x_E = exp_ratio(log_rho_E), exp_ratio(log_x_E)
    positive_E, negative_E = batch.advantage_E > 0, batch.advantage_E < 0
    columns = {
        "loss": outcome.policy_E + outcome.kl_E - outcome.entropy_bonus_E,
        "policy_loss": outcome.policy_E,
        "kl_loss": outcome.kl_E,
        "tokens": torch.ones_like(new_E),
        "tokens_positive": positive_E,
        "tokens_negative": negative_E,
        "tokens_later_turns": batch.turn_E > 0,
        "clippable_high": outcome.clip_advantage_E > 0,
        "clippable_low": outcome.clip_advantage_E < 0,
        "clipped_high": outcome.too_high_E,
        "clipped_low": outcome.too_low_E,
        "masked_tokens": outcome.dropped_token_E,
        "masked_by_sequence": outcome.dropped_sequence_E,
        "capped": rho_E > config.importance_weight_cap_ratio,
        "ratio": rho_E,
        "ratio_squared": rho_E.square(),
        "mismatch_ratio_squared": x_E.square(),
        "far_off": (x_E < 0.5) | (x_E > 2.0),
        "k1": -log_x_E,
        "k3": x_E - 1.0 - log_x_E.clamp(-20.0, 20.0),
        "mismatch": log_x_E.abs(),
        "mismatch_later_turns": log_x_E.abs() * (batch.turn_E > 0),
        "probability_change": (new_E.exp() - old_E.exp()).abs(),
        "logprob": new_E,
        "logprob_positive": new_E * positive_E,
        "logprob_negative": new_E * negative_E,
        "rollout_logprob": old_E,
        "staleness": batch.staleness_E,
    }
    masked_E = outcome.dropped_token_E | outcome.dropped_sequence_E
    columns |= {"masked": masked_E, "kept": ~masked_E}
    columns |= {"k3_masked": columns["k3"] * masked_E, "k3_kept": columns["k3"] * ~masked_E}
    if batch.proximal_logprob_E is not None:
        columns["update_kl"] = batch.proximal_logprob_E - new_E
    if batch.reference_logprob_E is not None:
        columns["reference_kl"] = kl_terms(new_E, batch.reference_logprob_E, log_rho_E, KlEstimator.K3, False)
    if batch.entropy_E is not None:
        columns["entropy"] = batch.entropy_E
    if batch.truncated_E is not None and batch.outside_E is not None:
        columns |= {"truncated": batch.truncated_E, "outside_truncation": batch.outside_E}
    return {name: value.to(torch.float64) for name, value in columns.items()}


PART_COLUMNS = (
    "tokens",
    "tokens_positive",
    "tokens_negative",
    "clippable_high",
    "clippable_low",
    "clipped_high",
    "clipped_low",
    "masked",
    "ratio",
    "ratio_squared",
    "k3",
    "mismatch",
    "logprob",
    "entropy",
)
PART_PEAKS = ("surprise",)
ENGINE_COLUMNS = ("tokens", "mismatch", "k3", "staleness")  # few: a run may have a hundred engines
WEIGHTED = ("loss/loss", "loss/policy_loss", "loss/kl_loss")  # their sums over an update's entries are its loss


def _parts(batch: LossBatch, sources_T: Sequence[str] | None) -> Iterator[tuple[str, Tensor]]:
    """(area, indices of entries) by source, by staleness and by turn."""
    if sources_T:
        names = sorted(set(sources_T))
        number_T = torch.tensor([names.index(s) for s in sources_T], device=batch.trajectory_E.device)
        for number, name in enumerate(names):
            yield f"loss_by_source/{name}", number_T[batch.trajectory_E] == number
    starts = torch.tensor(BUCKETS, device=batch.turn_E.device)
    for name, values_E in (("staleness", batch.staleness_E), ("turn", batch.turn_E)):
        bucket_E = torch.bucketize(values_E, starts, right=True) - 1
        for bucket in torch.unique(bucket_E).tolist():
            yield f"loss_by_{name}/{BUCKETS[bucket]}", bucket_E == bucket


def _reduced(
    area: str, columns: dict[str, Tensor], peaks: dict[str, Tensor], index_E: Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    if not index_E.any():
        return {}, {}
    sums = torch.stack([column[index_E].sum() for column in columns.values()]).tolist()
    maxima = torch.stack([column[index_E].amax() for column in peaks.values()]).tolist() if peaks else []
    names = ([f"{area}/{name}" for name in group] for group in (columns, peaks))
    return dict(zip(next(names), sums, strict=True)), dict(zip(next(names), maxima, strict=True))


def _per_trajectory(batch: LossBatch, outcome: Outcome, denominators: Denominators) -> dict[str, list[float]]:
    tokens_T = torch.bincount(batch.trajectory_E, minlength=len(denominators.tokens_T))
    present_T = tokens_T > 0
    count = len(tokens_T)

    def sums(values_E: Tensor) -> Tensor:
        return trajectory_sum(values_E.double(), batch.trajectory_E, count)[present_T]

    length_T = tokens_T[present_T].double()
    log_x_T, new_T, old_T = sums(outcome.log_mismatch_E), sums(batch.new_logprob_E), sums(batch.old_logprob_E)
    return {
        "log_product": log_x_T.tolist(),
        "log_geometric": (log_x_T / length_T).tolist(),
        "log_ppl_train": (-new_T / length_T).tolist(),
        "log_ppl_rollout": (-old_T / length_T).tolist(),
        "dropped": (sums(outcome.dropped_sequence_E) > 0).double().tolist(),
    }


def of_updates(parts: Sequence[Measured]) -> Measured:
    """Combine the updates of a step, each with its own loss: loss sums are averaged over updates.

    The caller must omit updates without a token on any rank.
    """
    whole = combine(parts)
    means = {name: whole.sums[name] / len(parts) for name in WEIGHTED if name in whole.sums}
    return dataclasses.replace(whole, sums=whole.sums | means)


def combine(parts: Sequence[Measured]) -> Measured:
    """Combine several ranks, or several rows of an update."""
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    per_trajectory: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.sums.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in part.maxima.items():
            maxima[name] = max(maxima.get(name, -math.inf), value)
        for name, values in part.per_trajectory.items():
            per_trajectory.setdefault(name, []).extend(values)
    histogram = [sum(counts) for counts in zip(*(p.histogram for p in parts if p.histogram), strict=True)]
    return Measured(sums, maxima, per_trajectory, histogram)


MEANS = {  # metric: (sum, over how many)
    "ratio_mean": ("ratio", "tokens"),
    "k1_mean": ("k1", "tokens"),
    "k3_mean": ("k3", "tokens"),
    "k3_masked_mean": ("k3_masked", "masked"),
    "k3_kept_mean": ("k3_kept", "kept"),
    "mismatch_mean_nats": ("mismatch", "tokens"),
    "mismatch_later_turns_mean_nats": ("mismatch_later_turns", "tokens_later_turns"),
    "probability_change_mean": ("probability_change", "tokens"),
    "far_off_fraction": ("far_off", "tokens"),
    "logprob_mean_nats": ("logprob", "tokens"),
    "logprob_positive_mean_nats": ("logprob_positive", "tokens_positive"),
    "logprob_negative_mean_nats": ("logprob_negative", "tokens_negative"),
    "rollout_logprob_mean_nats": ("rollout_logprob", "tokens"),
    "staleness_mean_steps": ("staleness", "tokens"),
    "entropy_mean_nats": ("entropy", "tokens"),
    "update_kl_mean_nats": ("update_kl", "tokens"),
    "reference_kl_mean_nats": ("reference_kl", "tokens"),
    "clipped_high_fraction": ("clipped_high", "clippable_high"),
    "clipped_low_fraction": ("clipped_low", "clippable_low"),
    "masked_fraction": ("masked", "tokens"),
    "masked_token_fraction": ("masked_tokens", "tokens"),
    "capped_fraction": ("capped", "tokens"),
    "outside_truncation_fraction": ("outside_truncation", "truncated"),
}


def report(measured: Measured) -> dict[str, float]:
    """The metrics of a whole step. Means over nothing are omitted."""
    sums, maxima = measured.sums, measured.maxima
    areas = sorted({name.rpartition("/")[0] for name in sums})
    of_engines = [area for area in areas if area.startswith(f"{BY_ENGINE}/")]
    areas = [area for area in areas if area not in of_engines or len(of_engines) > 1]  # of one, it is the step's
    result = {"loss/loss": sums.get("loss/loss", 0.0), "loss/trained_tokens": sums.get("loss/tokens", 0.0)}
    for area in areas:
        of_area = {name.rpartition("/")[2]: value for name, value in sums.items() if name.rpartition("/")[0] == area}
        result |= {
            f"{area}/{name}": of_area[value] / of_area[count]
            for name, (value, count) in MEANS.items()
            if value in of_area and of_area.get(count)
        }
        if area != "loss":
            result[f"{area}/trained_tokens"] = of_area["tokens"]
        if area not in of_engines:
            result |= _fractions(area, of_area)
            result[f"{area}/min_probability"] = math.exp(-maxima[f"{area}/surprise"])
    if areas:
        result |= _of_step(sums, maxima) | _of_trajectories(measured.per_trajectory)
        result["loss/mismatch_p99_nats"] = _quantile(measured.histogram, 0.99)
    return result


def _fractions(area: str, sums: dict[str, float]) -> dict[str, float]:
    """The effective sample size is 1 if all weights are equal, 1/n if one token has all the weight."""
    tokens, sided = sums["tokens"], sums["clippable_high"] + sums["clippable_low"]
    result = {f"{area}/ess_fraction": sums["ratio"] ** 2 / (tokens * sums["ratio_squared"])}
    if sided:
        result[f"{area}/clipped_fraction"] = (sums["clipped_high"] + sums["clipped_low"]) / sided
    return result


def _of_step(sums: dict[str, float], maxima: dict[str, float]) -> dict[str, float]:
    tokens = sums["loss/tokens"]
    return {
        "loss/policy_loss": sums["loss/policy_loss"],
        "loss/kl_loss": sums["loss/kl_loss"],
        "loss/chi2_token": sums["loss/mismatch_ratio_squared"] / tokens - 1.0,
        "loss/ratio_max": maxima["loss/ratio"],
        "loss/ratio_min": 1.0 / maxima["loss/inverse_ratio"],
        "loss/mismatch_max_nats": maxima["loss/mismatch"],
        "loss/staleness_max_steps": maxima["loss/staleness"],
    } | ({"loss/kl_to_entropy_ratio": sums["loss/k3"] / sums["loss/entropy"]} if sums.get("loss/entropy") else {})


def _of_trajectories(values: dict[str, list[float]]) -> dict[str, float]:
    """Perplexities are means over trajectories of exp(mean −log-prob); χ² of products is limited at exp(40)."""
    of = {name: torch.tensor(column, dtype=torch.float64) for name, column in values.items()}
    geometric, difference = of["log_geometric"].exp(), of["log_ppl_train"] - of["log_ppl_rollout"]
    quantiles = torch.quantile(geometric, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
    return {
        "loss/sequence_ratio_p05": quantiles[0],
        "loss/sequence_ratio_p50": quantiles[1],
        "loss/sequence_ratio_p95": quantiles[2],
        "loss/sequence_log_ratio_mean_nats": float(of["log_product"].mean()),
        "loss/chi2_sequence": float((2.0 * of["log_product"]).clamp(max=40.0).exp().mean()) - 1.0,
        "loss/ppl_train": float(of["log_ppl_train"].exp().mean()),
        "loss/ppl_rollout": float(of["log_ppl_rollout"].exp().mean()),
        "loss/log_ppl_difference_mean": float(difference.mean()),
        "loss/log_ppl_difference_max": float(difference.abs().max()),
        "loss/masked_sequence_fraction": float(of["dropped"].mean()),
    }


def _quantile(histogram: Sequence[float], part: float) -> float:
    """The upper edge of the bin in which the quantile lies: at most 5 % above it."""
    counts = torch.tensor(histogram, dtype=torch.float64)
    bin_ = int(torch.searchsorted(counts.cumsum(0), part * counts.sum()))
    return float(HISTOGRAM[min(bin_, len(HISTOGRAM) - 1)])
