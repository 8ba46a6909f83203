"""Inputs and outputs of a loss: entries, denominators, and what became of each entry.

TrainedTokens   known before the forward: in a Row, on the model's device
LossBatch       the same columns, and the log-probs that the forward gave
Terms           the same columns, and the ratios that the losses are functions of (ratios.py)
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor


class Flat:
    """A dataclass of parallel 1-D tensors, some of which may be None in all of its instances alike."""

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """One after the other; at least one part."""
        tables = [part.columns() for part in parts]
        return cls(
            **{name: None if c is None else torch.cat([of[name] for of in tables]) for name, c in tables[0].items()}
        )

    def columns(self) -> dict[str, Any]:
        """{name: tensor or None}"""
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]  # every subclass is a dataclass
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class TrainedTokens(Flat):
    """What is known of trained tokens before they are forwarded. `old_logprob_E`: of the policy that sampled the token."""

    old_logprob_E: Tensor
    advantage_E: Tensor
    trajectory_E: Tensor
    turn_E: Tensor
    staleness_E: Tensor
    engine_E: Tensor  # `shared.engine_mismatch.engine_number`


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBatch(TrainedTokens):
    """The entries of one row, or of any part of a step; all tensors have the same length.

    None: an entropy that was not computed, a reference model that is not used. `truncated_E`: the token was drawn from a
    truncated distribution; `outside_E`: it is not in the one that the model's logits give. Without proximal log-probs, those of
    `new_logprob_E` itself are taken where a loss asks for them: exact in the first update of a batch.
    """

    new_logprob_E: Tensor
    entropy_E: Tensor | None = None
    proximal_logprob_E: Tensor | None = None
    reference_logprob_E: Tensor | None = None
    truncated_E: Tensor | None = None
    outside_E: Tensor | None = None

    @classmethod
    def of(cls, trained: TrainedTokens, new_logprob_E: Tensor, **more: Any) -> Self:
        """The entries of a row, and what the forward found for each: `more` are the other fields of this class."""
        columns: dict[str, Any] = {
            field.name: getattr(trained, field.name) for field in dataclasses.fields(TrainedTokens)
        }
        return cls(**columns, new_logprob_E=new_logprob_E, **more)

    def detached(self) -> Self:
        """The same numbers without their graph, to be kept until the step is measured."""
        columns: dict[str, Any] = {name: None if c is None else c.detach() for name, c in self.columns().items()}
        return type(self)(**columns)


@dataclass(frozen=True, slots=True)
class Denominators:
    """Counts of one optimizer update. `num_*` are over all ranks; `tokens_T` has the trajectories that this rank holds.

    `tokens_T[t]` is how many trained tokens the trajectory has that the rows number t; it lies on their device. A
    trajectory without a trained token is no sequence and is not counted.

    `entries_T[t]` is how many of them have a loss, where some have none (too old, say): what the mean of a trajectory's ratio
    is over. ω is of all. None: all have one.
    """

    num_tokens: int
    num_trajectories: int
    tokens_T: Tensor
    entries_T: Tensor | None = None

    @classmethod
    def count(cls, tokens_T: Tensor, entries_T: Tensor | None = None) -> "Denominators":
        """Of one rank alone; sum `num_tokens` and `num_trajectories` over the ranks before use."""
        return cls(int(tokens_T.sum()), int((tokens_T > 0).sum()), tokens_T, entries_T)

    @property
    def whole_T(self) -> Tensor:
        """Entries that make a trajectory whole, if it has any."""
        return self.tokens_T if self.entries_T is None else self.entries_T


@dataclass(frozen=True, slots=True)
class Outcome(Flat):
    """What the loss did with each entry: detached. The three terms are weighted by ω, so that sums are the step's."""

    policy_E: Tensor
    kl_E: Tensor
    entropy_bonus_E: Tensor
    too_high_E: Tensor  # bool: A > 0 and beyond the upper bound
    too_low_E: Tensor  # bool: A < 0 and beyond the lower bound
    clip_advantage_E: Tensor  # the A of these two: the entry's own, or for GSPO its trajectory's mean
    dropped_token_E: Tensor  # bool: by a token mask
    dropped_sequence_E: Tensor  # bool: by a mask on its trajectory
    log_mismatch_E: Tensor  # log x, not clamped


class TokenLoss(NamedTuple):
    """l of each entry, and which of them a trust region clipped."""

    loss_E: Tensor
    too_high_E: Tensor
    too_low_E: Tensor
    clip_advantage_E: Tensor  # whose sign says which bound holds: the entry's own, or for GSPO its trajectory's mean
