"""One optimizer step over any number of rows, the same whatever rows, ranks and devices it is spread over.

    counts ─sum over ranks─▶ for each row: forward ▸ loss ▸ backward ─▶ global norm ▸ clip ▸ AdamW ─▶ metrics, reduced once

Denominators are known before the first backward, so rows and ranks only add up. FSDP divides gradients by the number of
ranks: each loss is multiplied by it. Every rank runs as many forwards and backwards as the busiest one (with empty rows),
since each is a collective; gradients travel between ranks only after the last. A gradient that is not finite never
reaches the weights: the step is skipped and counted.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from trainer.attention import MaskBuilder, choose
from trainer.forward import TreeLM, loss_batch, row_logprobs
from trainer.loss_metrics import LossMetrics, combine, report
from trainer.losses import Denominators, LossConfig, compute
from trainer.model import layer_classes, load_model
from trainer.packing import Row, empty_row
from trainer.parallel import Parallel, shard_model
from trainer.schedule import Schedule, learning_rate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedule. Weight decay is for matrices only, not for norms."""

    learning_rate: float = 1e-6
    lr_schedule: Schedule = "constant"
    warmup_steps: int = 0
    max_steps: int = 1000  # where a falling schedule reaches its floor
    min_lr_ratio: float = 0.1
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0  # 0: no clipping


@dataclass(frozen=True, slots=True)
class StepResult:
    """`metrics` are of all ranks together, and the same on every rank."""

    metrics: dict[str, float]
    skipped: bool  # the weights did not move: nothing to train, or a gradient that is not finite


def open_learner(
    model_directory: Path,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    parallel: Parallel,
    *,
    dtype: str = "float32",
    attn_implementation: str = "sdpa",
    logprob_chunk: int = 512,
    with_entropy: bool = False,
) -> "Learner":
    """Load, wrap, shard: a learner ready for its first step or for `checkpoint.load`."""
    checkpointing = parallel.settings.activation_checkpointing
    causal_lm = load_model(
        model_directory,
        dtype=dtype,
        attn_implementation=attn_implementation,
        gradient_checkpointing=checkpointing,
    )
    lm = TreeLM(causal_lm)
    shard_model(lm, layer_classes(causal_lm), parallel)
    mask = choose(attn_implementation, parallel.device)
    return Learner(lm, loss, optimizer, parallel, mask=mask, logprob_chunk=logprob_chunk, with_entropy=with_entropy)


class Learner:
    """Model, optimizer and step count of one rank. `lm` must be sharded already; see `open_learner`."""

    def __init__(
        self,
        lm: TreeLM,
        loss: LossConfig,
        config: OptimizerConfig,
        parallel: Parallel,
        *,
        mask: MaskBuilder,
        logprob_chunk: int = 512,
        with_entropy: bool = False,
    ) -> None:
        self.lm = lm
        self.config = config
        self.steps_done = 0
        self.optimizer = _adamw(lm, config, parallel)
        self._loss = loss
        self._parallel = parallel
        self._mask = mask
        self._chunk = logprob_chunk
        self._with_entropy = with_entropy

    @property
    def sharded(self) -> FSDPModule:
        """The same module as `lm`, by the methods that sharding gave it."""
        assert isinstance(self.lm, FSDPModule)
        return self.lm

    @property
    def causal_lm(self) -> PreTrainedModel:
        """The transformers model inside: what is published and what the checkpoint names."""
        model = self.lm.causal_lm
        assert isinstance(model, PreTrainedModel)
        return model

    def step(self, rows: Sequence[Row], denominators: Denominators) -> StepResult:
        """One update from this rank's rows. `denominators` are this rank's own counts; they are summed over ranks here.

        Every rank must call it, also one without rows. `steps_done` grows by one, also when the step is skipped.
        """
        started = time.monotonic()
        rate = self._set_learning_rate()
        totals = self._global_counts(denominators)
        rounds = self._parallel.max_int(len(rows))
        metrics, norm = {}, 0.0
        if rounds:
            metrics = report(self._reduce(self._accumulate(rows, rounds, totals)))
            norm = self._update()
        skipped = rounds == 0 or not math.isfinite(norm)
        self.steps_done += 1
        metrics |= {
            "learner/learning_rate": rate,
            "learner/grad_norm": norm,
            "learner/skipped_steps": float(skipped),
            "learner/rounds": float(rounds),
            "learner/trajectories": float(totals.num_trajectories),
            "learner/step_s": time.monotonic() - started,
        }
        return StepResult(metrics, skipped)

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
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _global_counts(self, own: Denominators) -> Denominators:
        tokens, trajectories = self._parallel.sum_scalars([own.num_tokens, own.num_trajectories])
        return Denominators(int(tokens), int(trajectories), own.tokens_T.to(self._parallel.device))

    def _accumulate(self, rows: Sequence[Row], rounds: int, totals: Denominators) -> LossMetrics:
        """Gradients of all rows in the parameters, averaged over ranks at the last round; metrics of this rank's rows."""
        parts = []
        padding = empty_row()
        for index in range(rounds):
            self.sharded.set_requires_gradient_sync(index == rounds - 1)
            row = rows[index] if index < len(rows) else padding
            parts.append(self._forward_backward(row.to(self._parallel.device), totals))
        return combine(parts)

    def _forward_backward(self, row: Row, totals: Denominators) -> LossMetrics:
        logprob_E, entropy_E = row_logprobs(
            self.lm, row, chunk=self._chunk, attn=self._mask, with_entropy=self._with_entropy
        )
        loss, metrics = compute(loss_batch(row, logprob_E, entropy_E), totals, self._loss)
        (loss * self._parallel.world_size).backward()
        return metrics

    def _update(self) -> float:
        """Clip and step, unless the gradient is not finite; returns its norm before clipping."""
        parameters = [p for p in self.lm.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        value = float(norm)
        if math.isfinite(value):
            if self.config.max_grad_norm > 0:
                torch.nn.utils.clip_grads_with_norm_(parameters, self.config.max_grad_norm, norm)
            self.optimizer.step()
        else:
            log.warning("step %d skipped: gradient norm is %s; the weights stay as they are", self.steps_done, value)
        self.optimizer.zero_grad()
        return value

    def _reduce(self, own: LossMetrics) -> LossMetrics:
        """Over ranks: one collective for the sums and one for the maxima. The keys are the same on every rank."""
        sums, maxima = torch.stack(list(own.sums.values())), torch.stack(list(own.maxima.values()))
        dist.all_reduce(sums)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        return LossMetrics(dict(zip(own.sums, sums, strict=True)), dict(zip(own.maxima, maxima, strict=True)))


def _adamw(lm: TreeLM, config: OptimizerConfig, parallel: Parallel) -> torch.optim.AdamW:
    named = [(name, p) for name, p in lm.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        fused=parallel.device.type == "cuda" and not parallel.settings.offload_params,
    )
