"""Weights of linear layers rounded to 8 bits, as an engine does that samples with them; the trainer's stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST = 127  # symmetric: -128 is not used
# Without VNNI, oneDNN adds products of two pairs in 16 bits, which overflow unnoticed: results were off by 12 % (uniform
# weights), and are exact with weights of 7 bits (measured on AVX2; oneDNN's documentation, "Nuances of int8 Computations").
LARGEST_WITHOUT_VNNI = 63
VNNI = {"avx512_vnni", "avx_vnni", "amx_int8"}
_NUMBERS = {"num_bits": 8, "type": "int", "symmetric": True}
# W8A8 in the words of compressed-tensors, which vLLM and SGLang read: weights by output row, activations by token.
QUANTIZATION_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "linear": {
            "targets": ["Linear"],
            "weights": {**_NUMBERS, "strategy": "channel", "dynamic": False},
            "input_activations": {**_NUMBERS, "strategy": "token", "dynamic": True},
        }
    },
}


def largest_on(device: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> int:
    """The largest weight with which the kernels of the device type are exact."""
    if device != "cpu":
        return LARGEST
    flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    return LARGEST if VNNI & {*flags.split()} else LARGEST_WITHOUT_VNNI


def rounded(weight: torch.Tensor, largest: int = LARGEST) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a weight [out, in]: int8 [out, in] and float32 scales [out, 1], whose product is the nearest of 2 * largest + 1 values.

    scale = max |row| / largest. A row of zeros has scale 1. The work is done in float32.
    """
    row = weight.float()
    scale = row.abs().amax(1, keepdim=True) / largest
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (row / scale).round().clamp(-largest, largest).to(torch.int8), scale


def rounded_linears(
    weights: Iterable[tuple[str, torch.Tensor]], linears: Set[str], largest: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint, with those named in `linears` rounded: each is followed by NAME_scale."""
    for name, tensor in weights:
        if name in linears:
            values, scale = rounded(tensor, largest)
            yield f"{name}_scale", scale
            yield name, values
        else:
            yield name, tensor


def names_of_linears(model: PreTrainedModel) -> frozenset[str]:
    """Of a transformers model: the weights of its linear layers but the output layer, as checkpoints name them.

    Raises ValueError for a parameter that is neither an embedding nor the weight of a linear layer, for instance the experts of a
    layer in one tensor.
    """
    apart = {id(layer) for layer in (model.get_output_embeddings(), model.get_input_embeddings())}
    others = [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() > 2 or (parameter.dim() == 2 and not name.endswith("weight"))
    ]
    if others:
        raise ValueError(f"{others[0]} and {len(others) - 1} more are no weights of linear layers")
    return frozenset(
        f"{name}.weight"
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and id(layer) not in apart
    )
