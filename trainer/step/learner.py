"""One optimizer step over any number of rows. The update does not depend on how rows, ranks and devices share the work.

    counts ─sum over ranks─▶ accumulate: rows forward ▸ loss ▸ backward ─▶ global norm ▸ clip ▸ optimizer ─▶ metrics, reduced once
    └──────────────────────── once per minibatch; a step has one by default ───────────────────────┘

Denominators are known before the first backward, so rows and ranks only add up. FSDP divides gradients by the number of
shards: each loss is multiplied by it. A gradient that is not finite never reaches the weights: the update is skipped and counted.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from trainer.losses import Denominators
from trainer.modeling.attention import mask_counts
from trainer.modeling.pipeline_parallel import counted_elsewhere
from trainer.modeling.router_replay import replay_metrics
from trainer.modeling.routing import load_metrics, router_aux_loss, total
from trainer.reporting.loss_metrics import Measured, combine, of_updates, report
from trainer.reporting.token_logprobs import TokenLogprobs
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.accumulate import Accumulator, Pass
from trainer.step.optimizer import by_mesh, make_optimizers, set_learning_rate, total_norm
from trainer.step.schedule import learning_rate
from trainer.trees.experts import ModelBounds
from trainer.trees.minibatch import Minibatch
from trainer.trees.packing import Row

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """`metrics` are of all ranks together, and the same on every rank."""

    metrics: dict[str, float]
    skipped: bool  # the weights did not move at all: nothing to train, or gradients that are not finite
    logprobs: Sequence[TokenLogprobs | None] = ()  # of this rank, by update; None: nothing to train, or not asked for
    not_finite: str | None = None  # why the first update without a finite gradient has none


class Learner:
    """Model, optimizer and step count of one rank; `open_learner` (`opening.py`) makes one.

    `linear`: rows must be made with `Merging.LINEAR` and `one_sequence_per_row`.
    """

    def __init__(self, accumulator: Accumulator, config: OptimizerConfig, *, linear: bool = False) -> None:
        self.lm = accumulator.lm
        self.reference = accumulator.reference
        self.config = config
        self.linear = linear
        self.steps_done = 0
        self._parallel = accumulator.parallel
        self.optimizers = make_optimizers(self.lm, config, self._parallel)
        self._accumulator = accumulator

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The transformers model inside: what is published and what the checkpoint names."""
        model = self.lm.causal_lm
        assert isinstance(model, PreTrainedModel)
        return model

    @property
    def short_rows(self) -> bool:
        """Whether rows should be packed with `short_rows`. Not with sharded parameters, which travel at each forward, on a GPU,
        which long rows keep busy, and where a balance of experts takes one more forward of all rows but the first.
        """
        balances = self._accumulator.loss.router_aux_loss_coef != 0.0
        return self._parallel.device.type == "cpu" and not isinstance(self.lm, FSDPModule) and not balances

    @property
    def lives_on_host(self) -> bool:
        """Whether parameters and optimizer states are on the host at all times."""
        return self._parallel.settings.offload_params

    @property
    def bounds(self) -> ModelBounds:
        """What its rows may have."""
        replay = self._accumulator.lm.replay
        vocab_size = int(self.causal_lm.config.get_text_config().vocab_size)
        return ModelBounds(vocab_size, None if replay is None else replay.shape)

    def step(self, rows: Sequence[Row], denominators: Denominators) -> StepResult:
        """A step of one update from this rank's rows; see `step_in_minibatches`."""
        return self.step_in_minibatches([Minibatch(rows, denominators)])

    def step_in_minibatches(self, minibatches: Sequence[Minibatch]) -> StepResult:
        """One update per minibatch, in order. Their `denominators` are this rank's own counts; they are summed over ranks here.

        Every rank must call it with as many minibatches, also one without rows. `steps_done` grows by one, also when updates are
        skipped. The log-probs of a proximal clip anchor are those before the first update.
        """
        started = time.monotonic()
        rate = self._set_learning_rate()
        done: list[Pass] = []  # of the updates for which any rank has a row
        norms, trajectories = [], 0
        logprobs: list[TokenLogprobs | None] = []
        not_finite: list[str] = []
        replay = self._accumulator.lm.replay
        if replay is not None:
            replay.restart()
        anchors = self._accumulator.anchors(minibatches)
        for minibatch, of_rows in zip(minibatches, anchors, strict=True):
            update = self._accumulator.run(minibatch, of_rows)
            trajectories += update.num_trajectories
            logprobs.append(update.logprobs)
            if update.count:
                done.append(update)
                norms.append(self._update())
                if not math.isfinite(norms[-1]):
                    not_finite.append(self._not_finite(update))
        moved = [norm for norm in norms if math.isfinite(norm)]
        self.steps_done += 1
        metrics = report(self._reduce(of_updates([update.measured for update in done]))) | {
            "learner/learning_rate": rate,
            "learner/grad_norm": sum(norms) / len(norms) if norms else 0.0,
            "learner/skipped_steps": float(not moved),
            "learner/updates": float(len(moved)),
            "learner/passes": float(max((update.count for update in done), default=0)),
            "learner/rounds": float(self._parallel.max_int(sum(len(m.rows) for m in minibatches))),
            "learner/trajectories": float(trajectories),
            "learner/step_s": time.monotonic() - started,
        }
        metrics |= self._row_metrics([row for minibatch in minibatches for row in minibatch.rows])
        metrics |= self._routing_metrics(done, metrics["loss/loss"])
        replayed = self._accumulator.lm.replay_counts(self._parallel.device)
        if replayed is not None:
            counts = self._parallel.sum_over_tokens(replayed)
            metrics |= replay_metrics(self._parallel.sum_over_stages(counts))
        return StepResult(metrics, skipped=not moved, logprobs=logprobs, not_finite=next(iter(not_finite), None))

    def _not_finite(self, update: Pass) -> str:
        """Every rank calls it. The first rank's sentence; one about a loss goes before one about the gradient alone."""
        causes = [text for text in self._parallel.everyone.gather_objects(update.not_finite()) if text]
        why = min(causes, key=lambda text: text.startswith("every loss"), default="no token was trained")
        log.warning("step %d: an update is left out, the weights stay as they are: %s", self.steps_done + 1, why)
        return why

    def _set_learning_rate(self) -> float:
        config = self.config
        rate = learning_rate(
            self.steps_done,
            peak=config.learning_rate,
            schedule=config.lr_schedule,
            warmup_steps=config.warmup_steps,
            max_steps=config.max_steps,
            floor_ratio=config.min_lr_ratio,
        )
        set_learning_rate(self.optimizers, rate)
        return rate

    def _update(self) -> float:
        """Clip and step, unless the gradient is not finite; returns its norm before clipping."""
        kinds = by_mesh(p for p in self.lm.parameters() if p.grad is not None)
        norm = self._norm(kinds)
        if math.isfinite(norm):
            if self.config.max_grad_norm > 0:
                for kind in kinds:
                    torch.nn.utils.clip_grads_with_norm_(
                        kind, self.config.max_grad_norm, torch.tensor(norm, dtype=torch.float64)
                    )
            for optimizer in self.optimizers:
                optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return norm

    def _norm(self, kinds: Sequence[Sequence[nn.Parameter]]) -> float:
        """Of the gradient of all stages; what two of them hold counts once."""
        pipeline, elsewhere = self._parallel.pipeline, counted_elsewhere(self.causal_lm, self.lm.stage)
        counted = [[p.grad for p in kind if p.grad is not None and p is not elsewhere] for kind in kinds]
        norm = math.hypot(*(total_norm(gradients) for gradients in counted if gradients))
        return norm if pipeline is None else math.sqrt(pipeline.peers.sum_scalars([norm * norm])[0])

    def _row_metrics(self, rows: Sequence[Row]) -> dict[str, float]:
        tokens, padding, visible, blocks = self._parallel.data.sum_scalars(mask_counts(rows, self._accumulator.mask))
        return {
            "learner/pad_fraction": padding / max(tokens + padding, 1.0),
            "learner/block_density": visible / max(blocks, 1.0),
        }

    def _routing_metrics(self, done: Sequence[Pass], loss: float) -> dict[str, float]:
        """`loss`: without what balances the experts."""
        routings = [update.routing for update in done if update.routing is not None]
        metrics = load_metrics(total(routings)) if routings else {}
        coefficient = self._accumulator.loss.router_aux_loss_coef
        if coefficient:
            added = sum(float(router_aux_loss(r, r, coefficient)) for r in routings) / max(len(routings), 1)
            metrics |= {"loss/router_aux_loss": added, "loss/loss": loss + added}
        return metrics

    def _reduce(self, own: Measured) -> Measured:
        """Over ranks; their names differ where one has a source or a staleness that another has not."""
        return combine(self._parallel.data.gather_objects(own))
