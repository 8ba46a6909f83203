"""Compiled layers (`torch.compile`): fuses a layer's many small operations, which reduces memory traffic.

    embedding ─▶ layer ─▶ layer ─▶ … ─▶ norm ─▶ log-probs
                 └──────┬──────┘
                 compiled for all equal layers together; forward and backward; from the second row on its length is a symbol

Compiles layers, not the model: forty take as long to compile as two, and operations around a layer stay outside. FSDP2
gathers and frees parameters around it, and a checkpointed layer is recomputed by the same code. Attention by node
(`trainer/modeling/node_attention.py`), a loop over the row's spans, is called uncompiled; FlexAttention and SDPA are
compiled with the layer.

Recompilation: the first row of another length, another type of layer, a forward without gradient, other frozen parameters, a
row of one token; on a CPU the first row beyond 1024 tokens. Later lengths and trees reuse the code.
"""

import logging
import os
import shutil
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from shared.errors import ConfigError
from trainer.modeling.trainable import lora_layers
from trainer.process.parallel import Parallel
from trainer.process.private_apis import layer_class_names, recompile_options

log = logging.getLogger(__name__)

BACKEND = "inductor"
EXPERT_SETTINGS = ("num_experts", "num_local_experts", "n_routed_experts")  # in models' configurations
VARIANTS = 64  # recompilation limit; beyond PyTorch's default, 8, it would silently continue uncompiled


def use_compiled_layers(model: PreTrainedModel, parallel: Parallel, *, obstacle: str | None) -> None:
    """Make every layer compile itself at its first use. Call before `shard_model`, which shards the compiled layers.

    Raises ConfigError without a compiler or compilable layers, for layers split over processes, for layers with more than
    full attention (`obstacle`, see `tree_obstacle`), and with adapters or experts.
    """
    _check(model, parallel, obstacle)
    compiled: dict[type, type] = {}
    for layer in model.modules():
        kind = type(layer)
        if isinstance(layer, GradientCheckpointingLayer) and kind.__name__ in layer_class_names(model):
            if kind not in compiled:
                compiled[kind] = _compiled(kind)
            layer.__class__ = compiled[kind]
    if not compiled:
        raise ConfigError(
            f"compile_layers: {type(model).__name__} has no layer of class "
            f"{', '.join(layer_class_names(model)) or '(none named)'} that can be compiled; expected false"
        )


def _compiled(kind: type[nn.Module]) -> type:
    """A subclass with a compiled forward, under the class name that sharding expects.

    transformers wraps the forward of these classes for checkpointing; the wrapped function is compiled. `dynamic` is left to
    PyTorch: True makes symbols of the numbers in a layer that FSDP2 manages too, such as `head_dim`, and FlexAttention on a GPU
    cannot be compiled for a symbolic number of heads (InductorError in `_use_flex_decoding`).
    """
    plain: Any = kind.forward
    forward = torch.compile(  # type: ignore[call-overload]  # its stubs lag behind
        getattr(plain, "__wrapped__", plain), backend=BACKEND, **recompile_options(VARIANTS)
    )
    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _check(model: PreTrainedModel, parallel: Parallel, obstacle: str | None) -> None:
    tp_size, cp_size = parallel.mesh["tp"].size(), parallel.context.size
    if tp_size > 1 or cp_size > 1:
        raise ConfigError(
            f"compile_layers is on, with tp_size {tp_size} and cp_size {cp_size}; expected both 1: communication inside a "
            "layer is not compiled"
        )
    kinds = sorted(set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - {"full_attention"})
    more = obstacle or (f"layers of type {', '.join(kinds)}" if kinds else None)
    if more:
        raise ConfigError(
            f"compile_layers is on, and model type {model.config.model_type} has more than full attention ({more}); "
            "expected false"
        )
    if lora_layers(model):
        raise ConfigError(
            "compile_layers is on, and the model has adapters; expected lora_rank 0, or compile_layers false"
        )
    experts = [name for name in EXPERT_SETTINGS if getattr(model.config, name, None)]
    if experts:
        raise ConfigError(f"compile_layers is on, and the model has experts ({experts[0]}); expected false")
    compiler = os.environ.get("CXX", "g++")  # as in PyTorch
    if parallel.device.type == "cpu" and shutil.which(compiler) is None:
        raise ConfigError(
            f"compile_layers needs a C++ compiler, and {compiler} is not there; install g++, name another in CXX, or set it to "
            "false"
        )
