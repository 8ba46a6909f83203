"""Log-probabilities and sampling for a batch of rows of logits.

Log-probs are float32 log_softmax(logits / temperature) over what min-p, top-k and top-p leave of the vocabulary, as in vLLM
with `processed_logprobs`; temperature 0 is greedy with log-probs at temperature 1 over all of it. Sampling inverts the
cumulative distribution: one uniform number per row, from the row's own generator. In a large vocabulary it finds the block of
tokens first, then the token in it. So the sums in float64 run over a few hundred numbers of a row and not over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sampler.engine.local.running import RunningSequence

VOCABULARY_BLOCK = 256  # tokens
ONE_SUM = 4096  # tokens of a vocabulary whose blocks would not save time; 32 rows of 49,152: 35 ms, with blocks 4

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
    for row in batch.filtered:
        p = batch.generations[row].params
        log_probs[row] = truncated(log_probs[row], p.top_k, p.top_p, p.min_p)
    tokens = log_probs.argmax(-1) if batch.all_greedy else _draw(log_probs, batch)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]


def _draw(log_probs: Tensor, batch: SamplingBatch) -> Tensor:
    probs = log_probs.exp()
    uniform = torch.tensor([[g.rng.random()] for g in batch.generations], dtype=torch.float64)
    tokens = _by_blocks(probs, uniform) if probs.shape[1] > ONE_SUM else _invert(probs, uniform)[0][:, 0]
    return tokens if batch.greedy is None else torch.where(batch.greedy, log_probs.argmax(-1), tokens)


def _by_blocks(probs: Tensor, uniform: Tensor) -> Tensor:
    block, uniform = _invert(_block_sums(probs), uniform)
    ids = block * VOCABULARY_BLOCK + torch.arange(VOCABULARY_BLOCK)
    inside = ids < probs.shape[1]
    place, _ = _invert(probs.gather(1, ids.clamp(max=probs.shape[1] - 1)).mul_(inside), uniform)
    return ids.gather(1, place)[:, 0]


def _block_sums(probs: Tensor) -> Tensor:
    """[n, vocabulary] -> [n, blocks]; the last block may be shorter."""
    whole = probs.shape[1] // VOCABULARY_BLOCK
    sums = probs[:, : whole * VOCABULARY_BLOCK].unflatten(1, (whole, VOCABULARY_BLOCK)).sum(-1)
    rest = probs[:, whole * VOCABULARY_BLOCK :]
    return torch.cat((sums, rest.sum(-1, keepdim=True)), 1) if rest.shape[1] else sums


def _invert(masses: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """`masses` [n, m], `uniform` [n, 1] of [0, 1) -> the places [n, 1] where it is reached, and how far it reaches into each as a
    uniform number again. A place of mass 0 is never chosen."""
    cumulative = masses.cumsum(-1, dtype=torch.float64)
    target = cumulative[:, -1:] * uniform.clamp(max=_BELOW_ONE)
    place = torch.searchsorted(cumulative, target, right=True)
    mass = masses.gather(1, place).double()
    return place, (target - (cumulative.gather(1, place) - mass)).div_(mass).clamp_(0.0)


def truncated(log_probs: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """[vocabulary] -> the same with the tail at -inf, renormalized: keep the tokens with at least min_p times the largest
    probability, of these the top_k likeliest (and what ties with the last), of these the fewest whose mass reaches top_p.

    The order and the arithmetic of vLLM 0.32.0 (`apply_top_k_top_p_pytorch`, `MinPLogitsProcessor`)."""
    probs = log_probs.exp()
    kept = log_probs.masked_fill(probs < probs.max() * min_p, -torch.inf)
    ordered, index = kept.sort()  # ascending
    if top_k < len(ordered):
        ordered = ordered.masked_fill(ordered < ordered[-top_k], -torch.inf)
    if top_p < 1.0:
        beyond = ordered.softmax(-1).cumsum(-1) <= 1.0 - top_p
        beyond[-1] = False  # at least one token stays
        ordered = ordered.masked_fill(beyond, -torch.inf)
    return torch.empty_like(ordered).scatter_(0, index, ordered.log_softmax(-1))
