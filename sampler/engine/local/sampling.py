"""Log-probabilities and sampling for a batch of rows of logits.

Log-probs are float32 log_softmax(logits / temperature) over the whole vocabulary, before top-p, top-k and min-p, as in
SGLang; temperature 0 is greedy with log-probs at temperature 1. Sampling inverts the cumulative distribution in
float64: one uniform number per row, from the row's own generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sampler.engine.local.running import RunningSequence

_BELOW_ONE = 1 - 2.0**-40  # keeps uniform * total strictly below total, so that no token of probability 0 is chosen


@dataclass(slots=True)
class SamplingBatch:
    """Sampling parameters of the rows; rebuilt when the batch changes, used at every step."""

    generations: Sequence[RunningSequence]
    temperature: Tensor | None  # [n, 1]; None: all are 1
    greedy: Tensor | None  # [n] bool; None: no row is
    all_greedy: bool
    filtered: list[int]  # rows with top-p, top-k or min-p

    @classmethod
    def of(cls, generations: Sequence[RunningSequence]) -> SamplingBatch:
        params = [g.params for g in generations]
        temperatures = [p.temperature for p in params]
        greedy = [p.greedy for p in params]
        return cls(
            generations=generations,
            temperature=None if all(t == 1.0 for t in temperatures) else torch.tensor(temperatures)[:, None],
            greedy=torch.tensor(greedy) if any(greedy) else None,
            all_greedy=all(greedy),
            filtered=[row for row, p in enumerate(params) if p.filtered],
        )


def sample(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """`logits` [n, vocabulary] float32 -> token ids [n] int64 and their log-probs [n]."""
    if batch.temperature is not None:
        logits = logits / batch.temperature
    log_probs = torch.log_softmax(logits, -1)
    tokens = log_probs.argmax(-1) if batch.all_greedy else _draw(log_probs, batch)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]


def _draw(log_probs: Tensor, batch: SamplingBatch) -> Tensor:
    probs = log_probs.exp()
    for row in batch.filtered:
        p = batch.generations[row].params
        probs[row] = truncate(probs[row], p.top_k, p.top_p, p.min_p)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    uniform = torch.tensor([g.rng.random() * _BELOW_ONE for g in batch.generations], dtype=torch.float64)
    target = (cumulative[:, -1] * uniform)[:, None]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return tokens if batch.greedy is None else torch.where(batch.greedy, log_probs.argmax(-1), tokens)


def truncate(probs: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """[vocabulary] -> the same with the tail at zero, not renormalized: keep the top_k most likely tokens, of these the fewest
    whose mass reaches top_p, of these those with at least min_p times the largest probability."""
    ordered, index = probs.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered[before > top_p] = 0.0
    ordered[top_k:] = 0.0
    ordered[ordered < ordered[0] * min_p] = 0.0
    return torch.zeros_like(probs).scatter_(0, index, ordered)
