"""The tokens that a truncated distribution keeps: those whose logit is at least a threshold, which is found here.

The rules and their order are those of `shared/truncation.py`, by the trainer's own logits. A threshold lies half-way between the
last token that is kept and the first that is not, so that a second computation of the logits, by another kernel or in the
backward, keeps the same tokens.

    suffix _E  one requested log-prob      _V  vocabulary      _U  distinct (token, distribution), as in `packing.py`
"""

import torch
from torch import Tensor

TOP_P, TOP_K, MIN_P = range(3)  # columns of `truncation_E`
DROPPED = (
    -1e30
)  # the logit of a token that is not kept: its probability is 0, and 0 times it is 0, where -inf gives NaN
BLOCK = 8  # a chunk's rows are sorted in so many parts: a sort takes 5 times the memory of what it sorts
NEAR_MASS, NEAR_SHARE = 1e-5, 1e-4  # of `near`: float32's sum of a vocabulary errs by some 1e-6


def columns(truncation_U: Tensor) -> Tensor | None:
    """A row's truncation, [U, 3]; None: no token of it is truncated."""
    return truncation_U if len(truncation_U) else None


@torch.no_grad()
def thresholds(logits_EV: Tensor, truncation_E: Tensor) -> Tensor:
    """The least logit that is kept, for each row; -inf keeps all. `logits_EV` are divided by the temperature already.

    `truncation_E` [E, 3]: top_p (1: off), top_k (0: off), min_p (0: off). Sorts the logits, a part of the rows at a time.
    """
    size = max(1, -(-len(logits_EV) // BLOCK))
    parts = [
        _thresholds(logits, truncation)
        for logits, truncation in zip(logits_EV.split(size), truncation_E.split(size), strict=True)
    ]
    return torch.cat(parts)


@torch.no_grad()
def dropped(logits_EV: Tensor, targets_E: Tensor, threshold_E: Tensor) -> tuple[Tensor, Tensor]:
    """(what is below the threshold, except the sampled token, whose log-prob so stays finite [E, V]; which sampled tokens are
    below it [E])"""
    dropped_EV = logits_EV < threshold_E[:, None]
    outside_E = dropped_EV.gather(-1, targets_E[:, None]).squeeze(-1)
    return dropped_EV.scatter_(-1, targets_E[:, None], value=False), outside_E


def near(truncation_U: Tensor) -> list[Tensor]:
    """A row's truncation a little looser, and a little tighter: between them lie the boundary's ties, which the rounding of two
    programs decides otherwise."""
    variants = []
    for sign in (1, -1):
        other_U = truncation_U.clone()
        top_p_U, min_p_U = truncation_U[:, TOP_P], truncation_U[:, MIN_P]
        other_U[:, TOP_P] = torch.where(top_p_U < 1.0, (top_p_U + sign * NEAR_MASS).clamp(max=1.0), top_p_U)
        other_U[:, MIN_P] = min_p_U * (1.0 - sign * NEAR_SHARE)
        variants.append(other_U)
    return variants


def _thresholds(logits: Tensor, truncation: Tensor) -> Tensor:
    vocabulary = logits.shape[-1]
    top_p, min_p = truncation[:, TOP_P, None].double(), truncation[:, MIN_P, None].to(logits.dtype)
    top_k = truncation[:, TOP_K, None].long()
    ordered = logits.sort(dim=-1, descending=True).values
    kept = ordered >= ordered[:, :1] + min_p.log()
    kept &= ordered >= ordered.gather(-1, torch.where(top_k > 0, top_k, vocabulary).clamp(max=vocabulary) - 1)
    mass = (ordered - ordered[:, :1]).exp_().mul_(kept)
    before = mass.cumsum(-1, dtype=torch.float64).sub_(mass)
    kept &= (before < top_p * mass.sum(-1, keepdim=True, dtype=torch.float64)) | (top_p >= 1.0)
    count = kept.sum(-1, keepdim=True).clamp_(min=1)  # also where the logits are no numbers
    last = ordered.gather(-1, count - 1)
    following = ordered.gather(-1, count.clamp(max=vocabulary - 1))
    between = torch.where(count < vocabulary, (last + following) / 2, -torch.inf)
    return torch.where((between > following) | (count == vocabulary), between, last).squeeze(-1)
