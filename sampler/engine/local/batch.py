"""The decode batch: tensors of the n running sequences, advanced in place from step to step.

It is rebuilt only when a sequence joins, leaves or moves; otherwise a step costs a few in-place additions, and the sampled
tokens stay in torch for the next forward.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sampler.engine.local.attention import Plan
from sampler.engine.local.kv import KvSlots
from sampler.engine.local.running import RunningSequence
from sampler.engine.local.sampling import SamplingBatch

MASK_STEPS = 256  # decode steps per mask: a mask as wide as the context would cost more than the steps


class DecodeBatch:
    def __init__(self, kv: KvSlots, generations: Sequence[RunningSequence]) -> None:
        """`generations[i]` is in slot i and has at least one output token, whose KV is not written yet."""
        assert all(g.slot == row for row, g in enumerate(generations))
        self.sampling = SamplingBatch.of(generations)
        lengths = [g.kv_length for g in generations]
        positions = torch.tensor(lengths)
        self._mask: Tensor | None = None
        if len(set(lengths)) > 1:
            seen = torch.arange(min(kv.max_len, max(lengths) + MASK_STEPS)) < positions[:, None]
            self._mask = torch.full(seen.shape, float("-inf")).masked_fill_(seen, 0.0)[:, None, None]
        self._rows = torch.arange(len(lengths))
        self.plan = Plan(
            kv,
            token_N=torch.tensor([g.output[-1] for g in generations]),
            position_N=positions,
            write_index=kv.write_index(self._rows, positions),
            pieces=[],
            longest=max(lengths) + 1,
        )
        shifts = [0 if g.shown is None else g.shown.shift for g in generations]
        if any(shifts):
            self.plan.rotary = positions + torch.tensor(shifts)
        self._open_mask()

    @property
    def exhausted(self) -> bool:
        """The mask ends here: build a new batch."""
        return self._mask is not None and self.plan.longest > self._mask.shape[-1]

    def advance(self, tokens: Tensor) -> None:
        """Append each sequence's next token."""
        plan = self.plan
        plan.token_N = tokens
        plan.position_N.add_(1)
        plan.write_index.add_(1)
        if plan.rotary is not None:
            plan.rotary.add_(1)
        plan.longest += 1
        self._open_mask()

    def _open_mask(self) -> None:
        if self._mask is not None and not self.exhausted:
            self._mask[self._rows, 0, 0, self.plan.position_N] = 0.0
            self.plan.mask = self._mask[..., : self.plan.longest]
