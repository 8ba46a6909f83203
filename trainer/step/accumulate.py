"""The gradient of one update: every row forward and backward, and what was measured on the way.

    one pass    for each row: forward ▸ loss ▸ backward
                where a loss is a sum over entries, or no trajectory is spread over several rows
    two passes  forward of all rows without gradient ▸ the loss of the whole update, on leaves: c_e = ∂L/∂ℓ_e
                ▸ for each row: forward ▸ backward of Σ_e sg(c_e) ℓ_e
                exact for any loss; costs one more forward
    in stages   either, through a pipeline (`trainer/modeling/pipeline.py`): the loss is on the last stage, measured on all

Log-probs of the reference model and of the proximal policy are computed before the first update of a step (`anchors`).

The loss that balances experts multiplies two means over all tokens of the update (`trainer/modeling/routing.py`), and one of them
must be known before the first backward: with one pass all rows but the first are forwarded once more, without gradient and
without the head. The first one's own forward says the rest; where every rank has a single row, that is all.

Every rank runs as many forwards and backwards as the busiest one (with empty rows), since each is a collective; gradients travel
between ranks only after the last, unless `reduce_each_row`. A trajectory is on one rank as a whole, so its ratio needs no
communication.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from trainer.losses import ClipAnchor, Denominators, LossBatch, LossConfig, Outcome, compute
from trainer.modeling.attention import MaskBuilder
from trainer.modeling.forward import Forwarded, TreeLM, forward_row
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.pipeline_parallel import Stage, add_tied_gradients
from trainer.modeling.routing import Routing, router_aux_loss, total
from trainer.process.parallel import Parallel
from trainer.reporting.loss_metrics import Measured, measure
from trainer.reporting.not_finite import cause_of_update
from trainer.reporting.token_logprobs import TokenLogprobs, token_logprobs
from trainer.settings.loss import ProximalLogprobs
from trainer.step.reference import Reference
from trainer.step.stage_routing import balance_of_stage, routing_of_stages
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row, empty_row


@dataclass(frozen=True, slots=True)
class Pass:
    """What was measured: of this rank's entries, and of the tokens of all ranks where the model has experts. `count`: passes."""

    num_trajectories: int
    measured: Measured = field(default_factory=Measured)
    routing: Routing | None = None
    count: int = 0
    logprobs: TokenLogprobs | None = None  # of this rank's entries; None: not asked for
    not_finite: Callable[[], str | None] = lambda: None  # why the gradient is not, by this rank's entries


@dataclass(frozen=True, slots=True)
class Anchors:
    """Log-probs that the loss compares a row's new ones with, computed before the first update; each of shape (E,)."""

    reference_E: Tensor | None = None
    proximal_E: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Model, reference model and loss of one rank. Both models are sharded already; every rank makes the same calls."""

    lm: TreeLM
    reference: Reference | None
    loss: LossConfig
    parallel: Parallel
    mask: MaskBuilder
    chunk: int
    with_entropy: bool
    keep_logprobs: bool = False
    reduce_each_row: bool = False

    def anchors(self, minibatches: Sequence[Minibatch]) -> list[list[Anchors]]:
        """Of each row of each minibatch, and of the empty rows of a rank that has fewer than the busiest."""
        own = [minibatch.rows for minibatch in minibatches]
        rounds = [_padded(rows, self.parallel.max_int(len(rows))) for rows in own]
        pairs = zip(self._reference_logprobs(rounds), self._proximal_logprobs(rounds), strict=True)
        return [[Anchors(*of_row) for of_row in zip(*of_rows, strict=True)] for of_rows in pairs]

    def run(self, minibatch: Minibatch, anchors: Sequence[Anchors]) -> Pass:
        """Gradients in the parameters, averaged over ranks."""
        totals = self._of_the_step(minibatch.denominators)
        rows = _padded(minibatch.rows, len(anchors))
        if not rows:
            return Pass(totals.num_trajectories)
        passes = 2 if self._needs_two_passes(minibatch) else 1
        if self.lm.stage is not None:
            done = self._in_stages(self.lm.stage, rows, anchors, totals, two_passes=passes == 2)
        else:
            done = (self._two_passes if passes == 2 else self._one_pass)(rows, anchors, totals)
        batch, outcome, routing = done
        measured = measure(batch, outcome, totals, self.loss, minibatch.sources_T, minibatch.engines)
        logprobs = token_logprobs(rows, batch, outcome) if self.keep_logprobs else None
        not_finite = partial(cause_of_update, rows, batch, outcome, minibatch.records_T)
        return Pass(totals.num_trajectories, measured, routing, passes, logprobs, not_finite)

    def _of_the_step(self, own: Denominators) -> Denominators:
        """This rank's counts, the totals of all ranks in them."""
        tokens, trajectories = self.parallel.data.sum_scalars([own.num_tokens, own.num_trajectories])
        device = self.parallel.device
        entries_T = None if own.entries_T is None else own.entries_T.to(device)
        return Denominators(int(tokens), int(trajectories), own.tokens_T.to(device), entries_T)

    def _reference_logprobs(self, rounds: Sequence[Sequence[Row]]) -> list[list[Tensor | None]]:
        if self.reference is None:
            return [[None] * len(rows) for rows in rounds]
        found = iter(self.reference.logprobs([row for rows in rounds for row in rows]))
        return [[next(found) for _ in rows] for rows in rounds]

    def _proximal_logprobs(self, rounds: Sequence[Sequence[Row]]) -> list[list[Tensor | None]]:
        """None where no forward is needed. Those of the first minibatch are the new log-probs of its own forward."""
        is_proximal = self.loss.clip_anchor is ClipAnchor.PROXIMAL
        forwards = is_proximal and self.loss.proximal_logprobs is not ProximalLogprobs.LOGLINEAR
        return [
            [of_row.logprob_E for of_row in self._scores(rows)] if forwards and index else [None] * len(rows)
            for index, rows in enumerate(rounds)
        ]

    def _moved(self, rows: Sequence[Row]) -> Iterator[Row]:
        """One row after the other on the model's device: once per pass, so that memory holds one."""
        return (row.to(self.parallel.device) for row in rows)

    def _needs_two_passes(self, minibatch: Minibatch) -> bool:
        if not self.loss.needs_whole_trajectories:
            return False
        present = [trajectory for row in minibatch.rows for trajectory in set(row.trajectory_E.tolist())]
        return bool(self.parallel.max_int(int(len(present) > len(set(present)))))

    def _one_pass(
        self, rows: Sequence[Row], anchors: Sequence[Anchors], totals: Denominators
    ) -> tuple[LossBatch, Outcome, Routing | None]:
        batches, outcomes, routings = [], [], self._routings_ahead(rows[1:])
        whole = None
        for index, (row, anchor) in enumerate(zip(self._moved(rows), anchors, strict=True)):
            self._reduce_after(index, len(rows))
            batch, routing = self._batch(row, anchor)
            loss, outcome = compute(batch, totals, self.loss)
            if len(routings) < len(rows) and routing is not None:
                routings.append(routing.detached())
            if self._balances and index == 0:
                whole = self._of_all_ranks(routings)
            self._backward(loss, routing, whole)
            batches.append(batch.detached())
            outcomes.append(outcome)
        if whole is None:
            whole = self._of_all_ranks(routings)
        return LossBatch.concatenate(batches), Outcome.concatenate(outcomes), whole

    def _two_passes(
        self, rows: Sequence[Row], anchors: Sequence[Anchors], totals: Denominators
    ) -> tuple[LossBatch, Outcome, Routing | None]:
        with torch.no_grad():
            pairs = [self._batch(row, anchor) for row, anchor in zip(self._moved(rows), anchors, strict=True)]
        batch = LossBatch.concatenate([of_row for of_row, _ in pairs])
        routing = self._of_all_ranks([of_row for _, of_row in pairs if of_row is not None])
        linear, outcome = _linear_loss(batch, rows, totals, self.loss)
        for index, row in enumerate(self._moved(rows)):
            self._reduce_after(index, len(rows))
            forwarded = self._forward(row)
            self._backward(linear(index, forwarded), forwarded.routing, routing)
        return batch.detached(), outcome, routing

    def _in_stages(
        self,
        stage: Stage,
        rows: Sequence[Row],
        anchors: Sequence[Anchors],
        totals: Denominators,
        *,
        two_passes: bool,
    ) -> tuple[LossBatch, Outcome, Routing | None]:
        """Either number of passes, through the stages of a pipeline."""
        pipeline = self._pipeline()

        def of_row(index: int, forwarded: Forwarded) -> LossBatch:
            return _batch_of(rows[index].to(self.parallel.device), forwarded, anchors[index])

        def loss_of_row(index: int, forwarded: Forwarded) -> Tensor:
            return compute(of_row(index, forwarded), totals, self.loss)[0] * self.parallel.num_shards

        balance_of = partial(balance_of_stage, self.lm, self.loss, self.parallel, self._of_all_ranks)
        if two_passes:
            done = pipeline.scores(rows)
            batch = LossBatch.concatenate([of_row(*numbered) for numbered in enumerate(done)])
            linear, outcome = _linear_loss(batch, rows, totals, self.loss)
            balance = balance_of(done, num_rows=len(rows))
            pipeline.train(rows, lambda index, forwarded: linear(index, forwarded) * self.parallel.num_shards, balance)
        else:
            later = [row.without_entries() for row in rows[1:]] if self._balances else []
            balance = balance_of(pipeline.scores(later) if later else [], num_rows=len(rows))
            done = pipeline.train(rows, loss_of_row, balance)
            batches = [of_row(*numbered) for numbered in enumerate(done)]
            outcome = Outcome.concatenate([compute(of, totals, self.loss)[1] for of in batches])
            batch = LossBatch.concatenate(batches)
        add_tied_gradients(self.lm.causal_lm, stage)
        return batch.detached(), outcome, routing_of_stages(self.lm, self._of_all_ranks, done)

    @torch.no_grad()
    def _scores(self, rows: Sequence[Row]) -> list[Forwarded]:
        if self.lm.stage is not None:
            return self._pipeline().scores(rows)
        return [self._forward(row) for row in self._moved(rows)]

    def _pipeline(self) -> RowPipeline:
        options: dict[str, Any] = {"chunk": self.chunk, "attn": self.mask, "with_entropy": self._needs_entropy}
        return RowPipeline(self.lm, self.parallel.device, **options, reduce_each_row=self.reduce_each_row)

    @property
    def _balances(self) -> bool:
        return self.loss.router_aux_loss_coef != 0.0

    def _backward(self, loss: Tensor, own: Routing | None, whole: Routing | None) -> None:
        """Of a row's loss and of its part in the experts' balance; FSDP divides by the number of shards."""
        if self._balances:
            assert own is not None, "open_learner refuses a coefficient without experts"
            assert whole is not None, "what is balanced was counted"
            loss = loss + router_aux_loss(own, whole, self.loss.router_aux_loss_coef)
        (loss * self.parallel.num_shards).backward()

    @torch.no_grad()
    def _routings_ahead(self, rows: Sequence[Row]) -> list[Routing]:
        """Of rows whose forward with gradient comes too late; none where nothing asks for them."""
        moved = self._moved([row.without_entries() for row in rows]) if self._balances else ()
        routings = [self._forward(row).routing for row in moved]
        return [routing for routing in routings if routing is not None]

    def _of_all_ranks(self, own: Sequence[Routing]) -> Routing | None:
        """None for a model without experts."""
        return Routing(*map(self.parallel.sum_over_tokens, total(own))) if own else None

    def _reduce_after(self, index: int, count: int) -> None:
        if isinstance(self.lm, FSDPModule):
            self.lm.set_requires_gradient_sync(self.reduce_each_row or index == count - 1)

    def _batch(self, row: Row, anchors: Anchors) -> tuple[LossBatch, Routing | None]:
        forwarded = self._forward(row)
        return _batch_of(row, forwarded, anchors), forwarded.routing

    def _forward(self, row: Row) -> Forwarded:
        return forward_row(
            self.lm,
            row,
            chunk=self.chunk,
            attn=self.mask,
            with_entropy=self._needs_entropy,
        )

    @property
    def _needs_entropy(self) -> bool:
        return self.with_entropy or self.loss.entropy_coefficient != 0.0


def _linear_loss(
    batch: LossBatch, rows: Sequence[Row], totals: Denominators, config: LossConfig
) -> tuple[Callable[[int, Forwarded], Tensor], Outcome]:
    """For a row, by its number, a loss with the gradient that the loss of the whole `batch` has there."""
    leaves = [leaf for leaf in (batch.new_logprob_E, batch.entropy_E) if leaf is not None]
    for leaf in leaves:
        leaf.requires_grad_()
    loss, outcome = compute(batch, totals, config)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    lengths = [row.num_entries for row in rows]
    coefficients = [None if gradient is None else torch.split(gradient, lengths) for gradient in gradients]

    def linear(index: int, forwarded: Forwarded) -> Tensor:
        outputs = [output for output in (forwarded.logprob_E, forwarded.entropy_E) if output is not None]
        weighted = zip(outputs, coefficients, strict=True)
        return torch.stack([(c[index] * output).sum() for output, c in weighted if c is not None]).sum()

    return linear, outcome


def _padded(rows: Sequence[Row], count: int) -> list[Row]:
    """This rank's rows, and empty ones up to the number of the busiest rank."""
    missing = count - len(rows)
    return [*rows, *([empty_row()] * missing if missing else ())]


def _batch_of(row: Row, forwarded: Forwarded, anchors: Anchors) -> LossBatch:
    truncated_E = row.truncated_E
    return LossBatch.of(
        row,
        forwarded.logprob_E,
        entropy_E=forwarded.entropy_E,
        proximal_logprob_E=anchors.proximal_E,
        reference_logprob_E=anchors.reference_E,
        truncated_E=truncated_E,
        outside_E=torch.zeros_like(truncated_E) if forwarded.outside_E is None else forwarded.outside_E,
    )
