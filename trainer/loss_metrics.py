"""What a loss reports, as sums and maxima, so that rows and ranks can be combined before anything is divided.

All of it is measured before clipping takes anything away. ρ is the ratio of the trainer's and the sampler's probability of a
token; k1 and k3 estimate KL(sampler ‖ trainer) from it (http://joschu.net/blog/kl-approx.html, with k3 = ρ − 1 − log ρ).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Detached 0-dim float64 tensors, the same keys in the same order whatever was measured.

    Reduce `sums` over ranks by sum and `maxima` by max.
    """

    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


@torch.no_grad()
def measure(
    *,
    loss: Tensor,
    log_ratio_E: Tensor,
    difference_E: Tensor,  # trainer's log-prob − sampler's, not clamped
    new_logprob_E: Tensor,
    advantage_E: Tensor,
    staleness_E: Tensor,
    turn_E: Tensor,
    entropy_E: Tensor | None,
    too_high_E: Tensor,
    too_low_E: Tensor,
    cap: float,
) -> LossMetrics:
    """The metrics of these entries; there may be none. `loss` is their weighted loss."""
    ratio_E = log_ratio_E.exp()
    mismatch_E = difference_E.abs()
    later_E = turn_E > 0
    entropy_E = ratio_E[:0] if entropy_E is None else entropy_E
    sums = {
        "loss": loss,
        "tokens": torch.ones_like(ratio_E).sum(),
        "tokens_positive": (advantage_E > 0).sum(),
        "tokens_negative": (advantage_E < 0).sum(),
        "tokens_later_turns": later_E.sum(),
        "clipped_high": too_high_E.sum(),
        "clipped_low": too_low_E.sum(),
        "capped": (ratio_E > cap).sum(),
        "ratio": ratio_E.sum(),
        "ratio_squared": ratio_E.square().sum(),
        "k1": -log_ratio_E.sum(),
        "k3": (ratio_E - 1.0 - log_ratio_E).sum(),
        "mismatch": mismatch_E.sum(),
        "mismatch_later_turns": mismatch_E[later_E].sum(),
        "logprob": new_logprob_E.sum(),
        "staleness": staleness_E.sum(),
        "entropy": entropy_E.sum(),
        "entropy_tokens": torch.ones_like(entropy_E).sum(),
    }
    maxima = {"ratio": _max(ratio_E), "mismatch": _max(mismatch_E), "staleness": _max(staleness_E)}
    return LossMetrics(
        {k: v.to(torch.float64) for k, v in sums.items()}, {k: v.to(torch.float64) for k, v in maxima.items()}
    )


def _max(values_E: Tensor) -> Tensor:
    """The largest of non-negative values; 0 of none."""
    return torch.cat([values_E, values_E.new_zeros(1)]).amax()


def combine(parts: Sequence[LossMetrics]) -> LossMetrics:
    """Of several rows of one rank; at least one."""
    if not parts:
        raise ValueError("no metrics to combine; expected those of at least one row (an empty_row counts)")
    return LossMetrics(
        sums={key: torch.stack([part.sums[key] for part in parts]).sum() for key in parts[0].sums},
        maxima={key: torch.stack([part.maxima[key] for part in parts]).amax() for key in parts[0].maxima},
    )


def report(metrics: LossMetrics) -> dict[str, float]:
    """Metrics of a whole step, as people read them. A mean over nothing is left out rather than called 0."""
    sums = {key: float(value) for key, value in metrics.sums.items()}
    maxima = {key: float(value) for key, value in metrics.maxima.items()}
    means = {
        "loss/ratio_mean": ("ratio", "tokens"),
        "loss/k1_mean": ("k1", "tokens"),
        "loss/k3_mean": ("k3", "tokens"),
        "loss/mismatch_mean_nats": ("mismatch", "tokens"),
        "loss/mismatch_later_turns_mean_nats": ("mismatch_later_turns", "tokens_later_turns"),
        "loss/logprob_mean_nats": ("logprob", "tokens"),
        "loss/staleness_mean_steps": ("staleness", "tokens"),
        "loss/entropy_mean_nats": ("entropy", "entropy_tokens"),
        "loss/clipped_high_fraction": ("clipped_high", "tokens_positive"),
        "loss/clipped_low_fraction": ("clipped_low", "tokens_negative"),
        "loss/capped_fraction": ("capped", "tokens"),
    }
    result = {"loss/loss": sums["loss"], "loss/trained_tokens": sums["tokens"]}
    result |= {name: sums[value] / sums[count] for name, (value, count) in means.items() if sums[count]}
    if sums["tokens"]:
        # effective sample size as a fraction: 1 when all weights are equal, 1/n when one token carries everything
        result["loss/ess_fraction"] = sums["ratio"] ** 2 / (sums["tokens"] * sums["ratio_squared"])
        result["loss/ratio_max"] = maxima["ratio"]
        result["loss/mismatch_max_nats"] = maxima["mismatch"]
        result["loss/staleness_max_steps"] = maxima["staleness"]
    return result
