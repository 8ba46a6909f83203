"""What training holds in memory, by part, from the heads of a model's files and a few settings; without torch, before a start.

    weights       all in `dtype`; with base_quantization nf4 the layers' matrices in 4 bits, and a float32 scale for 64
    adapters      of each matrix of the layers r × (inputs + outputs) numbers, with use_dora outputs more; float32 at least
    gradients     of what is trained, in its type
    optimizer     `trainer/step/optimizer.py`: the states of each trained tensor
    activations   what the backward needs, a token: `numbers_of_token`

All of one process that holds the whole model; over n processes all but a 4-bit base and the activations is divided by n. Not
counted: what a layer needs while it computes (its gathered copy; with use_dora a square of its inputs), log-probs of a chunk.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.names import shortened
from shared.weights.tensor_file import tensors_of
from tandem.launch.trainer_settings import GivenSettings

OPTIMIZERS = ("adamw", "adamw_8bit", "adafactor", "muon")
BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
OUTSIDE = ("embed", "lm_head", "wte", "wpe", "head.weight")  # matrices that are in no layer
NOT_LINEAR = ("experts.", "mlp.gate.", "conv1d", "norm")  # in layers, and neither adapted nor quantized
NF4_BLOCK, NF4_LEVELS = 64, 16
EIGHT_BITS_BLOCK, EIGHT_BITS_LEAST = 256, 4096

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedAs:
    """The settings that decide it. `lora_rank` 0: the model itself is trained."""

    optim: str = "adamw"
    dtype: str = "float32"
    lora_rank: int = 0
    use_dora: bool = False
    base_quantization: str = "none"


def trained_as(given: GivenSettings) -> TrainedAs:
    """The trainer's settings as a launch gives them. Raises ConfigError for a value that is none of its kind."""
    kinds: dict[str, type] = {"optim": str, "dtype": str, "lora_rank": int, "use_dora": bool, "base_quantization": str}
    values: dict[str, Any] = {name: given.get(name, kind) for name, kind in kinds.items()}
    if (dtype := values["dtype"]) is not None and dtype not in BYTES:
        raise ConfigError(f"trainer: dtype is {shortened(dtype)}; expected {', '.join(BYTES)}")
    return TrainedAs(**{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes."""

    weights: int
    adapters: int
    gradients: int
    optimizer: int
    activations: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


def predicted(folder: Path, settings: TrainedAs, tokens: int = 0) -> MemoryParts:
    """`tokens`: of the largest row; 0 leaves activations out. Raises DataError for an unreadable file, KeyError for a model
    whose config.json does not say its shape as Llama's does.
    """
    shapes = {t.name: t.shape for file in sorted(folder.glob("*.safetensors")) for t in tensors_of(file)}
    layers = {name: shape for name, shape in shapes.items() if _is_linear(name, shape)}
    size = BYTES[settings.dtype]
    four = settings.base_quantization == "nf4" and settings.lora_rank > 0
    weights = sum(
        nf4_bytes(prod(shape)) if four and name in layers and prod(shape) % NF4_BLOCK == 0 else size * prod(shape)
        for name, shape in shapes.items()
    )
    if settings.lora_rank:
        trained, exact = list(_adapters(layers.values(), settings)), max(size, BYTES["float32"])
        adapters, inside = exact * sum(map(prod, trained)), set(trained)
    else:
        trained, exact, adapters = list(shapes.values()), size, 0
        inside = {shape for name, shape in shapes.items() if not _is_outside(name)}
    gradients = exact * sum(map(prod, trained))
    optimizer = sum(state_bytes(shape, settings.optim, exact, in_layer=shape in inside) for shape in trained)
    activations = 0
    if tokens:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        activations = size * tokens * numbers_of_token(config, settings, layers)
    return MemoryParts(weights, adapters, gradients, optimizer, activations)


def _is_outside(name: str) -> bool:
    return any(word in name for word in OUTSIDE)


def _is_linear(name: str, shape: Shape) -> bool:
    return (
        len(shape) == 2
        and name.endswith(".weight")
        and not _is_outside(name)
        and not any(w in name for w in NOT_LINEAR)
    )


def nf4_bytes(numbers: int) -> int:
    return numbers // 2 + 4 * numbers // NF4_BLOCK + 4 * NF4_LEVELS


def _adapters(layers: Any, settings: TrainedAs) -> Iterator[Shape]:
    for outputs, inputs in layers:
        yield (settings.lora_rank, inputs)
        yield (outputs, settings.lora_rank)
        if settings.use_dora:
            yield (outputs,)


def state_bytes(shape: Shape, optim: str, size: int, *, in_layer: bool) -> int:
    """Of one trained tensor. `in_layer`: neither embedding nor head."""
    numbers = prod(shape)
    if optim == "adamw_8bit" and numbers >= EIGHT_BITS_LEAST:
        return 2 * (numbers + 4 * -(-numbers // EIGHT_BITS_BLOCK))
    if optim == "adafactor":
        return max(size, 4) * (numbers // shape[-1] + numbers // shape[-2] if len(shape) >= 2 else numbers)
    if optim == "muon" and len(shape) == 2 and in_layer:
        return size * numbers
    return 2 * size * numbers


def numbers_of_token(config: Mapping[str, Any], settings: TrainedAs, layers: Mapping[str, Shape]) -> int:
    """Numbers that the backward of one token needs, of a model with Llama's layers, without activation_checkpointing."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    query, key = heads * width, (config.get("num_key_value_heads") or heads) * width
    norms = 2 * (hidden + hidden)  # of each its input, and what it gives
    attention = 2 * query + 2 * key + heads  # q, k, v, what o_proj sees, log-sum-exp
    mlp = 4 * inner  # gate, its activation, up, their product
    keeps_normalized = not settings.lora_rank and settings.dtype != "float32"  # trained norms keep x / rms(x) too
    layer = norms + attention + mlp + (2 * hidden if keeps_normalized else 0)
    total: int = (
        config["num_hidden_layers"] * layer + (3 if keeps_normalized else 1 if settings.lora_rank else 2) * hidden
    )
    if settings.lora_rank:
        total += settings.lora_rank * len(layers)
    if settings.use_dora:
        total += 2 * sum(outputs for outputs, _ in layers.values())  # W x and B A x
    return total
