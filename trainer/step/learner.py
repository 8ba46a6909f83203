"""One optimizer step over any number of rows. The update does not depend on how rows, ranks and devices share the work.

    counts ─sum over ranks─▶ accumulate: rows forward ▸ loss ▸ backward ─▶ global norm ▸ clip ▸ AdamW ─▶ metrics, reduced once
    └──────────────────────── once per minibatch; a step has one unless it is told otherwise ────────┘

Denominators are known before the first backward, so rows and ranks only add up. FSDP divides gradients by the number of
shards: each loss is multiplied by it. A gradient that is not finite never reaches the weights: the update is skipped and counted.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from shared.errors import ConfigError
from trainer.losses import Denominators, LossConfig
from trainer.modeling.attention import MaskBuilder, mask_counts
from trainer.modeling.compiling import use_compiled_layers
from trainer.modeling.context_parallel import cut_sequences, plain_name
from trainer.modeling.forward import TreeLM
from trainer.modeling.forward_choice import Found, choose_way
from trainer.modeling.forward_ways import OWN, Way, tree_obstacle
from trainer.modeling.memory import MemorySettings, checkpoint_layers, with_optimizer_offload
from trainer.modeling.model import load_config, load_model
from trainer.modeling.routing import load_metrics, router_aux_loss, total
from trainer.modeling.sharded_loading import empty_model, fill
from trainer.modeling.tensor_parallel import cut_layers
from trainer.modeling.trainable import EVERYTHING, Trainable
from trainer.process.parallel import PRECISIONS, Parallel, shard_model
from trainer.process.private_apis import layer_class_names
from trainer.reporting.loss_metrics import Measured, combine, of_updates, report
from trainer.reporting.token_logprobs import TokenLogprobs
from trainer.settings.optimizer import OptimizerConfig
from trainer.step.accumulate import Accumulator, Pass
from trainer.step.optimizer import adamw, by_mesh, total_norm
from trainer.step.schedule import learning_rate
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


def open_learner(
    model_directory: Path,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    parallel: Parallel,
    *,
    trainable: Trainable = EVERYTHING,
    dtype: str = "float32",
    attn_implementation: str = "auto",
    prefix_trees: bool = True,
    dropout: bool = False,
    compile_layers: bool = False,
    with_entropy: bool = False,
    keep_logprobs: bool = False,
    memory: MemorySettings = MemorySettings(),
) -> "Learner":
    """Load, wrap, shard: a learner ready for its first step or for `checkpoint.load`.

    The frozen reference model, `loss.kl.reference_model` or the same weights, is loaded only where the loss has a KL term;
    the same weights are not loaded twice where they are there already, below adapters.
    How it is computed is measured (`trainer/modeling/forward_choice.py`). With `prefix_trees` False, or a model that they cannot
    go through, rows must be single sequences (`Learner.linear`).
    Raises ConfigError for settings that the model cannot honor, and where nothing agrees with the model's own forward.
    """
    obstacle = tree_obstacle(load_config(model_directory)) or ("dropout is on" if dropout else None)
    parallel = with_optimizer_offload(parallel, memory)
    first_loads = parallel.settings.first_loads and parallel.world_size > 1

    def load(directory: Path, trained: Trainable, *, dropout: bool = False) -> TreeLM:
        kind: dict[str, Any] = {"dtype": dtype, "attn_implementation": OWN.attention, "dropout": dropout}
        causal_lm = (empty_model if first_loads else load_model)(directory, trainable=trained, **kind)
        cut_layers(causal_lm, parallel.mesh["tp"], parallel.device)
        tp_size = parallel.mesh["tp"].size()
        cut_sequences(causal_lm, parallel.context, tp_size=tp_size, obstacle=obstacle)
        return TreeLM(causal_lm, parallel.context, tp_size=tp_size)

    def shard(lm: TreeLM, directory: Path, *, frozen: bool = False) -> None:
        shard_model(lm, layer_class_names(lm.causal_lm), parallel, frozen=frozen)
        if first_loads:
            fill(lm.causal_lm, directory, parallel, dtype=dtype)

    def measure(lm: TreeLM, directory: Path, attention: str, *, trees: bool) -> Way:
        why_not, precision = obstacle if trees else None, PRECISIONS[parallel.settings.precision]
        kind: dict[str, Any] = {"prefix_trees": trees, "precision": precision, "compiled": compile_layers}
        found = choose_way(lm, attention, parallel.device, obstacle=why_not, peers=parallel.everyone, **kind)
        if parallel.is_main:
            _tell(found, directory, trees_wanted=trees)
        return found.way

    lm = load(model_directory, trainable, dropout=dropout)
    _check_balance(lm, loss, model_directory)
    checkpoint_layers(lm.causal_lm, memory, parallel)
    if compile_layers:
        use_compiled_layers(lm.causal_lm, parallel, obstacle=obstacle)
    shard(lm, model_directory)
    way = measure(lm, model_directory, attn_implementation, trees=prefix_trees)
    reference = None
    if loss.kl and trainable.lora and loss.kl.reference_model is None:
        reference = lm
    elif loss.kl:
        directory = loss.kl.reference_model or model_directory
        reference = load(directory, EVERYTHING).requires_grad_(False)
        shard(reference, directory, frozen=True)
        _check_same_rows(measure(reference, directory, plain_name(way.attention), trees=way.trees), way, directory)
    return Learner(
        lm,
        loss,
        optimizer,
        parallel,
        mask=lm.mask(parallel.device),
        reference=reference,
        linear=not prefix_trees or not way.trees,
        logprob_chunk=memory.logprob_chunk,
        with_entropy=with_entropy,
        keep_logprobs=keep_logprobs,
    )


def _check_same_rows(reference: Way, way: Way, directory: Path) -> None:
    if reference.trees != way.trees:
        raise ConfigError(
            f"reference_model {directory}: no prefix tree goes through it, but one goes through the model; expected prefix_trees "
            "false, or a reference of the same kind"
        )


def _tell(found: Found, directory: Path, *, trees_wanted: bool) -> None:
    log.info("%s: computed by %s; against its own forward: %s", directory, found.way, found.difference)
    if trees_wanted and not found.way.trees:
        log.warning(
            "%s: no prefix trees: every sequence is forwarded on its own. Tried before: %s",
            directory,
            "; ".join(found.rejected),
        )
    elif found.rejected:
        log.info("%s: tried before: %s", directory, "; ".join(found.rejected))


def _check_balance(lm: TreeLM, loss: LossConfig, directory: Path) -> None:
    own = getattr(lm.causal_lm.config, "router_aux_loss_coef", 0.0)
    if loss.router_aux_loss_coef and lm.experts_per_token is None:
        raise ConfigError(
            f"router_aux_loss_coef is {loss.router_aux_loss_coef:g}, but {directory} is of type "
            f"{lm.causal_lm.config.model_type}, without experts that a loss balances; expected 0"
        )
    if own and not loss.router_aux_loss_coef:
        log.info("%s: its router_aux_loss_coef %g is not used; the trainer's setting is 0", directory, own)


class Learner:
    """Model, optimizer and step count of one rank. `lm` and `reference` must be sharded already; see `open_learner`.

    `reference` may be `lm` itself: then it is what lies below the adapters.
    `linear`: rows must be made with `Merging.LINEAR` and `one_sequence_per_row`.
    """

    def __init__(
        self,
        lm: TreeLM,
        loss: LossConfig,
        config: OptimizerConfig,
        parallel: Parallel,
        *,
        mask: MaskBuilder,
        reference: TreeLM | None = None,
        linear: bool = False,
        logprob_chunk: int = 512,
        with_entropy: bool = False,
        keep_logprobs: bool = False,
    ) -> None:
        self.lm = lm
        self.reference = reference
        self.config = config
        self.linear = linear
        self.steps_done = 0
        self.optimizer = adamw(lm, config, parallel)
        self._parallel = parallel
        self._mask = mask
        self._accumulator = Accumulator(lm, reference, loss, parallel, mask, logprob_chunk, with_entropy, keep_logprobs)

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

    @property
    def lives_on_host(self) -> bool:
        """Whether parameters and optimizer states are on the host at all times."""
        return self._parallel.settings.offload_params

    @property
    def vocab_size(self) -> int:
        """Ids from 0 up to here, without it, can be embedded."""
        return int(self.causal_lm.config.get_text_config().vocab_size)

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
        proximals = self._accumulator.proximal_logprobs(minibatches)
        for minibatch, proximal in zip(minibatches, proximals, strict=True):
            update = self._accumulator.run(minibatch, proximal)
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
        return StepResult(metrics, skipped=not moved, logprobs=logprobs, not_finite=next(iter(not_finite), None))

    def _not_finite(self, update: Pass) -> str:
        """Every rank calls it. The first rank's sentence; one about a loss goes before one about the gradient alone."""
        told = [text for text in self._parallel.everyone.gather_objects(update.not_finite()) if text]
        why = min(told, key=lambda text: text.startswith("every loss"), default="no token was trained")
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
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _update(self) -> float:
        """Clip and step, unless the gradient is not finite; returns its norm before clipping."""
        kinds = by_mesh(p for p in self.lm.parameters() if p.grad is not None)
        norm = math.hypot(*(total_norm([p.grad for p in kind if p.grad is not None]) for kind in kinds))
        if math.isfinite(norm):
            if self.config.max_grad_norm > 0:
                for kind in kinds:
                    torch.nn.utils.clip_grads_with_norm_(
                        kind, self.config.max_grad_norm, torch.tensor(norm, dtype=torch.float64)
                    )
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _row_metrics(self, rows: Sequence[Row]) -> dict[str, float]:
        tokens, padding, visible, blocks = self._parallel.data.sum_scalars(mask_counts(rows, self._mask))
        return {
            "learner/pad_fraction": padding / max(tokens + padding, 1.0),
            "learner/block_density": visible / max(blocks, 1.0),
        }

    def _routing_metrics(self, done: Sequence[Pass], loss: float) -> dict[str, float]:
        """`loss`: without what balances the experts."""
        routings = [update.routing for update in done if update.routing is not None]
        metrics = load_metrics(total(routings)) if routings else {}
        if coefficient := self._accumulator.loss.router_aux_loss_coef:
            added = sum(float(router_aux_loss(r, r, coefficient)) for r in routings) / max(len(routings), 1)
            metrics |= {"loss/router_aux_loss": added, "loss/loss": loss + added}
        return metrics

    def _reduce(self, own: Measured) -> Measured:
        """Over ranks; their names differ where one has a source or a staleness that another has not."""
        return combine(self._parallel.data.gather_objects(own))
