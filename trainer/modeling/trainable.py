"""The trained parameters: all, all except frozen ones, or low-rank adapters of frozen matrices (LoRA).

    lora_rank 0     every parameter that matches no pattern of `freeze`
    lora_rank r     y = W x + s · B A x with W frozen, A: r × inputs, B: outputs × r, s = lora_alpha / r, or / √r (rsLoRA, arXiv
                    2312.03732). B starts at zero, so that the first step begins with the model as it was (Hu et al. 2021, arXiv
                    2106.09685; the layers are PEFT's)
    use_dora        y = m ⊙ V x / ‖V‖, V = W + s · B A: the length of each row, m, is trained apart from its direction; ‖V‖ is a
                    constant to the gradient (DoRA, Liu et al. 2024, arXiv 2402.09353, section 4.3). m starts at ‖W‖
    lora_dropout p  B A sees each input with probability 1 − p, divided by that

A model is loaded together with its `Trainable`; later code reads `requires_grad` of parameters. Adapters have the same
initial values on every process, independent of its random state.
"""

import fnmatch
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from shared.errors import ConfigError
from shared.weights.adapters import MAGNITUDE, merge
from trainer.modeling.quantized_base import quantize_layers
from trainer.modeling.vision import vision_parts
from trainer.process.private_apis import switch_adapter
from trainer.settings.trained_parts import EVERY_LINEAR, LoraSettings, Trainable

log = logging.getLogger(__name__)

ADAPTER = "default"  # PEFT names each adapter; there is one


class LoraLayer(Protocol):
    """The used part of PEFT's layer around a `base_layer`, whose weight is `weight`; the magnitudes are of a DoRA."""

    weight: Tensor
    base_layer: nn.Module
    scaling: dict[str, float]
    lora_dropout: Mapping[str, nn.Module]
    lora_magnitude_vector: Mapping[str, nn.Module]

    def train(self, mode: bool = True) -> object: ...


def choose_trained(model: PreTrainedModel, trainable: Trainable) -> None:
    """Add the adapters, or freeze the parameters, in place. Call before the model is sharded.

    Raises ConfigError for a layer or pattern without a match, and if nothing is left to train.
    """
    if trainable.lora:
        if trainable.lora.base_quantization == "nf4":
            quantize_layers(model)
        _add_adapters(model, trainable.lora, trainable.seed, vision=trainable.train_vision)
    else:
        if not trainable.train_vision:
            for part in vision_parts(model).values():
                part.requires_grad_(False)
        _freeze(model, trainable.freeze)


def _freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    named = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matches = [name for name in named if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(f"freeze: {pattern!r} is the name of no parameter; the model has {', '.join(named)}")
        for name in matches:
            named[name].requires_grad_(False)
            tied = [other for other in named if named[other] is named[name] and other not in matches]
            if tied:
                log.warning("freeze: %s is tied to %s, which is frozen with it", name, ", ".join(tied))
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ConfigError(f"freeze: {', '.join(map(repr, patterns))} leave nothing to train")


def _add_adapters(model: PreTrainedModel, lora: LoraSettings, seed: int, *, vision: bool) -> None:
    import peft  # imported here: it takes seconds, which training without adapters does not need

    # Wrapped in a module of a type unknown to PEFT: in a mixture of experts PEFT would take a layer's name for that of a
    # projection inside the experts, as in older transformers.
    held = nn.ModuleDict({"held": model})
    targets = [f"held.{name}" for name in _target_names(model, lora.lora_target_modules, vision=vision)]
    config = peft.LoraConfig(
        r=lora.lora_rank,
        lora_alpha=lora.lora_alpha,  # type: ignore[arg-type]  # PEFT only divides by the rank
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        lora_dropout=lora.lora_dropout,
        target_modules=targets,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # otherwise each process would initialise different adapters
        peft.inject_adapter_in_model(config, held, adapter_name=ADAPTER)
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()  # small steps would be lost in 8 bits of mantissa
    for layer in lora_layers(model).values():
        for magnitude in layer.lora_magnitude_vector.values():
            # PEFT's is in the type of W; the forward's norm, by which it is divided, in that of the adapters
            exact: Any = magnitude.weight
            exact.data = torch.linalg.norm(layer.weight.detach().to(exact.dtype), dim=1)


def _target_names(model: PreTrainedModel, targets: Sequence[str], *, vision: bool) -> list[str]:
    """Full names, since an end of a name may also match other layers. `vision`: of the vision tower and projector too."""
    head = model.get_output_embeddings()
    out = () if vision else tuple(f"{name}." for name in vision_parts(model))
    linear = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer is not head and not name.startswith(out)
    }
    if EVERY_LINEAR in targets:
        return list(linear)
    matches = {end: [name for name in linear if name == end or name.endswith(f".{end}")] for end in targets}
    for end, names in matches.items():
        if not names:
            ends = sorted({name.rsplit(".", 1)[-1] for name in linear})
            raise ConfigError(
                f"lora_target_modules: {end!r} is no linear layer inside the model; expected {EVERY_LINEAR}, or names "
                f"such as {', '.join(ends)} (embedding and head get no adapter)"
            )
    return list(dict.fromkeys(name for names in matches.values() for name in names))


def lora_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """The layers with an adapter, by name; none without LoRA."""
    layers: dict[str, Any] = {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}
    return layers


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The base model in this context: W x. PEFT's public switch would change `requires_grad`, on which sharding relies."""
    layers = lora_layers(model).values()
    for layer in layers:
        switch_adapter(layer, on=False)
    try:
        yield
    finally:
        for layer in layers:
            switch_adapter(layer, on=True)


def drop_inputs(model: nn.Module) -> None:
    """Let `lora_dropout` act from here on: a model is loaded, measured, exported and compared without it."""
    for layer in lora_layers(model).values():
        layer.train()


def merged(state: dict[str, Tensor], scaling: dict[str, float]) -> dict[str, Tensor]:
    """Full tensors on the CPU, under the names of the model without adapters; `scaling` by layer.

    V = W + s · B A, or m / ‖V‖ · V, in the dtype of W; for a bfloat16 W it is computed in float32 and rounded once. A keeper
    that merges the adapter into W gets the same bits (`shared.weights.adapters`).
    """
    whole = {name: tensor for name, tensor in state.items() if ".lora_" not in name}
    for layer, scale in scaling.items():
        base = whole[f"{layer}.base_layer.weight"]
        exact = torch.promote_types(base.dtype, torch.float32)
        a, b = (state[f"{layer}.lora_{which}.{ADAPTER}.weight"].to(exact).numpy() for which in "AB")
        magnitude = state.get(f"{layer}.{MAGNITUDE}.{ADAPTER}.weight")
        m = None if magnitude is None else magnitude.to(exact).numpy()
        total = merge(base.to(exact).numpy(), (a, b), scale, torch.get_num_threads(), m)
        whole[f"{layer}.base_layer.weight"] = torch.from_numpy(total).to(base.dtype)
    return {name.replace(".base_layer.", "."): tensor for name, tensor in whole.items()}


def scaling_of(model: nn.Module) -> dict[str, float]:
    """The factor of B A of each layer with an adapter."""
    return {name: layer.scaling[ADAPTER] for name, layer in lora_layers(model).items()}
