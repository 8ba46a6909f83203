"""Memory-for-time trade-offs: recomputed or offloaded activations, optimizer states on the host.

    logprob_chunk              number of log-probs whose logits exist at a time (`trainer/modeling/logprobs.py`)
    activation_checkpointing   a layer keeps only its input and is recomputed in the backward (one more forward)
    activation_offload         … and that input is in host memory until then
    optimizer_offload          parameters, gradients and optimizer states are in host memory; a layer's parameters are on the
                               device while it computes, and the optimizer steps on the CPU (FSDP2's CPUOffloadPolicy)
    reference_offload          the reference model is in host memory, and on the device for its turn (`trainer/step/reference.py`)

None of them changes a gradient. On a CPU checkpointing saves as much; the offloads have nothing to move and are not
applied.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from shared.errors import ConfigError
from trainer.process.parallel import Parallel
from trainer.process.private_apis import wrap_layer_checkpoint
from trainer.settings.memory import MemorySettings


def checkpoint_layers(model: PreTrainedModel, memory: MemorySettings, parallel: Parallel) -> None:
    """Recompute every decoder layer in the backward if `memory` or the launcher's settings enable it.

    Raises ConfigError for a model whose layers do not support it.
    """
    if memory.activation_checkpointing or parallel.settings.activation_checkpointing:
        if not any(isinstance(module, GradientCheckpointingLayer) for module in model.modules()):
            raise ConfigError(
                f"activation_checkpointing is on, and {type(model).__name__} has no layers that can be computed "
                "again; expected false"
            )
        # non-reentrant: only it supports keyword arguments (BlockMask, spans) and gradients of several inputs
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs={"use_reentrant": False},
            offload=memory.activation_offload
            and parallel.device.type != "cpu",  # uses pinned memory, which needs an accelerator
        )
        if not model.training:
            _checkpoint_without_dropout(model)


def _checkpoint_without_dropout(model: nn.Module) -> None:
    """transformers checkpoints layers only in training mode: set it on the layer, and unset it inside the layer."""
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True  # only of the layer itself, not of its submodules
        wrap_layer_checkpoint(layer, _computed_again)


def _computed_again(checkpoint: Callable[..., Any], forward: "partial[Any]", *arguments: Any) -> Any:
    """Called by transformers: `forward` is the layer's, bound to the layer."""
    layer: nn.Module = forward.args[0]

    def inside(*given: Any) -> Any:
        layer.training = False
        try:
            return forward(*given)
        finally:
            layer.training = True

    return checkpoint(inside, *arguments)


def with_optimizer_offload(parallel: Parallel, memory: MemorySettings) -> Parallel:
    """`parallel` with parameters and optimizer states on the host; unchanged on a CPU."""
    if not memory.optimizer_offload or parallel.device.type == "cpu":
        return parallel
    return dataclasses.replace(parallel, settings=dataclasses.replace(parallel.settings, offload_params=True))
