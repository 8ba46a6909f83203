"""A learner ready for its first step: load, cut over processes, shard, measure how it is computed.

load ▸ cut layers and sequences ▸ recompute and compile layers ▸ shard ▸ measure ─▶ Learner      the reference model likewise
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from shared.errors import ConfigError
from trainer.losses import LossConfig
from trainer.modeling.compiling import use_compiled_layers
from trainer.modeling.context_parallel import check_slices, plain_name
from trainer.modeling.expert_parallel import expert_modules, spread_experts
from trainer.modeling.forward import TreeLM
from trainer.modeling.forward_choice import Conditions, ProbeResult, choose_forward_mode
from trainer.modeling.forward_ways import OWN, Way, slice_obstacle, tree_obstacle
from trainer.modeling.memory import checkpoint_layers, with_optimizer_offload
from trainer.modeling.model import DTYPES, load_config, load_model
from trainer.modeling.norms import use_norms
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.modeling.products import choose_products, use_products
from trainer.modeling.sharded_loading import empty_model, fill
from trainer.modeling.tensor_parallel import check_plan, cut_layers
from trainer.modeling.trainable import drop_inputs
from trainer.modeling.vision import has_vision, language_layers
from trainer.process.parallel import Parallel
from trainer.process.private_apis import layer_class_names
from trainer.process.shard_settings import PRECISIONS
from trainer.process.sharding import shard_model
from trainer.settings.memory import MemorySettings
from trainer.settings.model import ModelSettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.trained_parts import EVERYTHING, Trainable
from trainer.step.accumulate import Accumulator
from trainer.step.learner import Learner
from trainer.step.reference import Reference

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions:
    """What of a model is trained, how it is computed, and what is measured of each token: `ModelSettings` describes them."""

    trainable: Trainable = EVERYTHING
    dtype: str = "float32"
    attn_implementation: str = "auto"
    prefix_trees: bool = True
    dropout: bool = False
    compile_layers: bool = False
    memory: MemorySettings = field(default_factory=MemorySettings)
    with_entropy: bool = False
    keep_logprobs: bool = False

    @classmethod
    def of(
        cls,
        model: ModelSettings,
        memory: MemorySettings,
        seed: int,
        *,
        with_entropy: bool = False,
        keep_logprobs: bool = False,
    ) -> "LearnerOptions":
        """Of the sections that reinforcement learning and supervised training share; `seed` is that of new adapters."""
        return cls(
            trainable=model.trainable(seed),
            dtype=model.dtype,
            attn_implementation=model.attn_implementation,
            prefix_trees=model.prefix_trees,
            dropout=model.dropout,
            compile_layers=model.compile_layers,
            memory=memory,
            with_entropy=with_entropy,
            keep_logprobs=keep_logprobs,
        )


def open_learner(
    model_directory: Path,
    loss: LossConfig,
    optimizer: OptimizerConfig,
    parallel: Parallel,
    options: LearnerOptions = LearnerOptions(),
) -> Learner:
    """Load, wrap, shard: a learner ready for its first step or for `restore.load`.

    The frozen reference model, `loss.kl.reference_model` or the same weights, is loaded only where the loss has a KL term;
    the same weights are not loaded twice where they are there already, below adapters.
    How it is computed is measured (`trainer/modeling/forward_choice.py`). With `prefix_trees` False, or a model that they cannot
    go through, rows must be single sequences (`Learner.linear`).
    Raises ConfigError for settings that the model cannot honor, and where nothing agrees with the model's own forward.
    """
    lora = options.trainable.lora
    drops = options.dropout or bool(lora and lora.lora_dropout)  # each sequence has a mask of its own
    config = load_config(model_directory)
    _check_vision(config, model_directory, parallel, options)
    _check_stages(parallel, options)
    obstacle = tree_obstacle(config) or ("dropout is on" if drops else None)
    parallel = with_optimizer_offload(parallel, options.memory)
    first_loads = parallel.settings.first_loads and parallel.stage_size > 1

    def load(directory: Path, trained: Trainable, *, dropout: bool = False) -> TreeLM:
        tp_size = parallel.mesh["tp"].size()
        check_plan(load_config(directory), tp_size)
        kind: dict[str, Any] = {"dtype": options.dtype, "attn_implementation": OWN.attention, "dropout": dropout}
        causal_lm = (empty_model if first_loads else load_model)(directory, trainable=trained, **kind)
        use_products(causal_lm, compiled=options.compile_layers)
        use_norms(causal_lm, compiled=options.compile_layers)
        stage = cut_stages(causal_lm, parallel, dtype=PRECISIONS[parallel.settings.precision] or DTYPES[options.dtype])
        spread_experts(causal_lm, parallel)
        cut_layers(causal_lm, parallel.mesh["tp"], parallel.device, with_experts=parallel.experts is None)
        why_not = slice_obstacle(config) or ("dropout is on" if drops else None)
        check_slices(causal_lm, parallel.context, tp_size=tp_size, obstacle=why_not)
        return TreeLM(causal_lm, parallel.context, tp_size=tp_size, stage=stage)

    def shard(lm: TreeLM, directory: Path, *, frozen: bool = False) -> None:
        layers = language_layers(lm.causal_lm, layer_class_names(lm.causal_lm))
        experts = expert_modules(lm.causal_lm).values() if parallel.experts else ()
        shard_model(lm, layers, parallel, frozen=frozen, experts=experts)
        if first_loads:
            fill(lm.causal_lm, directory, parallel, dtype=options.dtype)

    def measure(lm: TreeLM, directory: Path, attention: str, *, trees: bool) -> Way:
        why_not, precision = obstacle if trees else None, PRECISIONS[parallel.settings.precision]
        conditions = Conditions(prefix_trees=trees, precision=precision, compiled=options.compile_layers)
        peers = parallel.everyone
        result = choose_forward_mode(
            lm, attention, parallel.device, obstacle=why_not, conditions=conditions, peers=peers
        )
        if parallel.is_main:
            _log_way(result, directory, prefix_trees=trees)
        return result.way

    choose_products(parallel)
    lm = load(model_directory, options.trainable, dropout=options.dropout)
    _check_balance(lm, loss, model_directory)
    checkpoint_layers(lm.causal_lm, options.memory, parallel)
    if options.compile_layers:
        use_compiled_layers(lm.causal_lm, parallel, obstacle=obstacle)
    shard(lm, model_directory)
    way = measure(lm, model_directory, options.attn_implementation, trees=options.prefix_trees)
    if lora and lora.lora_dropout:
        drop_inputs(lm.causal_lm)
    frozen = None
    if loss.kl and options.trainable.lora and loss.kl.reference_model is None:
        frozen = lm
    elif loss.kl:
        directory = loss.kl.reference_model or model_directory
        frozen = load(directory, EVERYTHING).requires_grad_(False)
        shard(frozen, directory, frozen=True)
        _check_same_rows(measure(frozen, directory, plain_name(way.attention), trees=way.trees), way, directory)
    mask, chunk = lm.mask(parallel.device), options.memory.logprob_chunk
    offload = options.memory.reference_offload and not parallel.settings.offload_params
    turns: dict[str, Any] = {"mask": mask, "chunk": chunk, "offload": offload}
    accumulator = Accumulator(
        lm,
        None if frozen is None else Reference(frozen, lm, parallel.device, **turns),
        loss,
        parallel,
        mask,
        chunk,
        options.with_entropy,
        options.keep_logprobs,
        options.memory.reduce_each_row,
    )
    return Learner(accumulator, optimizer, linear=not options.prefix_trees or not way.trees)


def _check_same_rows(reference: Way, way: Way, directory: Path) -> None:
    if reference.trees != way.trees:
        raise ConfigError(
            f"reference_model {directory}: no prefix tree goes through it, but one goes through the model; expected prefix_trees "
            "false, or a reference of the same kind"
        )


def _check_vision(config: PretrainedConfig, directory: Path, parallel: Parallel, options: LearnerOptions) -> None:
    """Raises ConfigError for what a vision-language model cannot be trained with."""
    if not has_vision(config):
        if options.trainable.train_vision:
            raise ConfigError(
                f"train_vision is true, but {directory} is of type {config.model_type}, without a vision tower; expected false"
            )
        return
    sizes = {"tp_size": parallel.mesh["tp"].size(), "cp_size": parallel.context.size, "pp_size": parallel.pp_size}
    sizes["ep_size"] = parallel.experts["ep"].size() if parallel.experts else 1
    given = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    given += ["compile_layers true"] if options.compile_layers else []
    lora = options.trainable.lora
    given += ["base_quantization nf4"] if lora and lora.base_quantization == "nf4" else []
    if given:
        raise ConfigError(
            f"{directory} is a vision-language model ({config.model_type}), which is not trained with {' and '.join(given)}; "
            "expected tp_size 1, cp_size 1, pp_size 1, ep_size 1, compile_layers false and base_quantization none"
        )


def _check_stages(parallel: Parallel, options: LearnerOptions) -> None:
    """Raises ConfigError for what a model in stages cannot be trained with."""
    if parallel.pipeline is None:
        return
    lora = options.trainable.lora
    given = ["compile_layers true"] if options.compile_layers else []
    given += ["base_quantization nf4"] if lora and lora.base_quantization == "nf4" else []
    given += ["dropout true"] if options.dropout else []
    given += ["lora_dropout above 0"] if lora and lora.lora_dropout else []
    if given:
        raise ConfigError(
            f"pp_size is {parallel.pipeline.peers.size}, with {' and '.join(given)}, which no test has run in stages; expected "
            "pp_size 1, or none of these"
        )


def _log_way(result: ProbeResult, directory: Path, *, prefix_trees: bool) -> None:
    log.info("%s: computed by %s; against its own forward: %s", directory, result.way, result.difference)
    if prefix_trees and not result.way.trees:
        log.warning(
            "%s: no prefix trees: every sequence is forwarded on its own. Tried before: %s",
            directory,
            "; ".join(result.rejected),
        )
    elif result.rejected:
        log.info("%s: tried before: %s", directory, "; ".join(result.rejected))


def _check_balance(lm: TreeLM, loss: LossConfig, directory: Path) -> None:
    own = getattr(lm.causal_lm.config, "router_aux_loss_coef", 0.0)
    if loss.router_aux_loss_coef and lm.experts_per_token is None:
        raise ConfigError(
            f"router_aux_loss_coef is {loss.router_aux_loss_coef:g}, but {directory} is of type "
            f"{lm.causal_lm.config.model_type}, without experts that a loss balances; expected 0"
        )
    if own and not loss.router_aux_loss_coef:
        log.info("%s: its router_aux_loss_coef %g is not used; the trainer's setting is 0", directory, own)
