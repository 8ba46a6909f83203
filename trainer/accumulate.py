"""The gradient of one update: every row forward and backward, and what was measured on the way.

    one pass    for each row: forward ▸ loss ▸ backward
                where a loss is a sum over entries, or no trajectory is spread over several rows
    two passes  forward of all rows without gradient ▸ the loss of the whole update, on leaves: c_e = ∂L/∂ℓ_e
                ▸ for each row: forward ▸ backward of Σ_e sg(c_e) ℓ_e
                exact for any loss; costs one more forward

Every rank runs as many forwards and backwards as the busiest one (with empty rows), since each is a collective; gradients travel
between ranks only after the last. A trajectory is on one rank as a whole, so its ratio needs no communication.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from trainer.attention import MaskBuilder
from trainer.forward import TreeLM, loss_batch, row_logprobs
from trainer.loss_metrics import Measured, measure
from trainer.losses import ClipAnchor, Denominators, LossBatch, LossConfig, Outcome, compute
from trainer.losses.settings import ProximalLogprobs
from trainer.packing import Row, empty_row
from trainer.parallel import Parallel
from trainer.trainable import adapters_off


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One update's data of this rank. `denominators` are this rank's own counts; `sources_T` names each trajectory's source."""

    rows: Sequence[Row]
    denominators: Denominators
    sources_T: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Model, reference model and loss of one rank. Both models are sharded already; every rank makes the same calls.

    `reference` may be `lm` itself: then it is what lies below the adapters.
    """

    lm: TreeLM
    reference: TreeLM | None
    loss: LossConfig
    parallel: Parallel
    mask: MaskBuilder
    chunk: int
    with_entropy: bool

    def proximal_logprobs(self, minibatches: Sequence[Minibatch]) -> list[list[Tensor] | None]:
        """ℓp of each row of each minibatch, before the first update; None where the loss knows it without a forward.

        Those of the first minibatch are None: in its forward the new log-probs are the proximal ones.
        """
        wanted = self.loss.clip_anchor is ClipAnchor.PROXIMAL
        if not wanted or self.loss.proximal_logprobs is ProximalLogprobs.LOGLINEAR:
            return [None] * len(minibatches)
        with torch.no_grad():
            later = [[self._forward(row)[0] for row in self._rounds(m)] for m in minibatches[1:]]
        return [None, *later]

    def run(
        self, minibatch: Minibatch, totals: Denominators, proximal: Sequence[Tensor] | None
    ) -> tuple[Measured, int]:
        """Gradients in the parameters, averaged over ranks; (metrics of this rank's entries, passes that it took)."""
        rows = self._rounds(minibatch)
        if not rows:
            return Measured(), 0
        proximals = [None] * len(rows) if proximal is None else list(proximal)
        passes = 2 if self._needs_two_passes(minibatch) else 1
        do = self._two_passes if passes == 2 else self._one_pass
        batch, outcome = do(rows, proximals, totals)
        return measure(batch, outcome, totals, self.loss, minibatch.sources_T), passes

    def _rounds(self, minibatch: Minibatch) -> list[Row]:
        """This rank's rows, and empty ones up to the number of the busiest rank."""
        rows = list(minibatch.rows)
        rows += [empty_row()] * (self.parallel.max_int(len(rows)) - len(rows))
        return rows

    def _needs_two_passes(self, minibatch: Minibatch) -> bool:
        if not self.loss.needs_whole_trajectories:
            return False
        present = [trajectory for row in minibatch.rows for trajectory in set(row.trajectory_E.tolist())]
        return bool(self.parallel.max_int(int(len(present) > len(set(present)))))

    def _one_pass(
        self, rows: Sequence[Row], proximals: Sequence[Tensor | None], totals: Denominators
    ) -> tuple[LossBatch, Outcome]:
        batches, outcomes = [], []
        for index, (row, proximal_E) in enumerate(zip(rows, proximals, strict=True)):
            self._sync_only_after_last(index, len(rows))
            batch = self._batch(row, proximal_E)
            loss, outcome = compute(batch, totals, self.loss)
            (loss * self.parallel.num_shards).backward()  # type: ignore[no-untyped-call]  # untyped in torch's stubs
            batches.append(batch.detached())
            outcomes.append(outcome)
        return LossBatch.concatenate(batches), Outcome.concatenate(outcomes)

    def _two_passes(
        self, rows: Sequence[Row], proximals: Sequence[Tensor | None], totals: Denominators
    ) -> tuple[LossBatch, Outcome]:
        with torch.no_grad():
            batches = [self._batch(row, proximal_E) for row, proximal_E in zip(rows, proximals, strict=True)]
        whole = LossBatch.concatenate(batches)
        leaves = [leaf for leaf in (whole.new_logprob_E, whole.entropy_E) if leaf is not None]
        for leaf in leaves:
            leaf.requires_grad_()
        loss, outcome = compute(whole, totals, self.loss)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        lengths = [row.num_entries for row in rows]
        coefficients = [None if gradient is None else torch.split(gradient, lengths) for gradient in gradients]
        for index, row in enumerate(rows):
            self._sync_only_after_last(index, len(rows))
            outputs = self._forward(row)
            pairs = zip((output for output in outputs if output is not None), coefficients, strict=True)
            linear = torch.stack([(c[index] * output).sum() for output, c in pairs if c is not None]).sum()
            (linear * self.parallel.num_shards).backward()  # type: ignore[no-untyped-call]  # untyped in torch's stubs
        return whole.detached(), outcome

    def _sync_only_after_last(self, index: int, count: int) -> None:
        assert isinstance(self.lm, FSDPModule)
        self.lm.set_requires_gradient_sync(index == count - 1)

    def _batch(self, row: Row, proximal_E: Tensor | None) -> LossBatch:
        row = row.to(self.parallel.device)
        reference_E = self._reference_logprobs(row)
        logprob_E, entropy_E = self._forward(row)
        return loss_batch(row, logprob_E, entropy_E, proximal_logprob_E=proximal_E, reference_logprob_E=reference_E)

    def _reference_logprobs(self, row: Row) -> Tensor | None:
        if self.reference is None:
            return None
        below = adapters_off(self.lm) if self.reference is self.lm else nullcontext()
        with torch.no_grad(), below:
            return row_logprobs(self.reference, row, chunk=self.chunk, attn=self.mask)[0]

    def _forward(self, row: Row) -> tuple[Tensor, Tensor | None]:
        return row_logprobs(
            self.lm,
            row.to(self.parallel.device),
            chunk=self.chunk,
            attn=self.mask,
            with_entropy=self.with_entropy or self.loss.entropy_coefficient != 0.0,
        )
