"""A frozen base of 4-bit numbers, below adapters (QLoRA, Dettmers et al. 2023, arXiv 2305.14314): half a byte a weight.

    files of `tandem quantize` ─▶ NF4: 4 bits a weight, a float32 scale for 64 ─▶ in each product: the weights of the files

Every linear layer but the head is held so, by bitsandbytes.

Engines sample from the weights in the files, so that these must be the weights that are trained: numbers that NF4 holds exactly.
`tandem quantize` writes such files, and a base of other numbers is refused. Every process has the whole base; only the
adapters are sharded.
"""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import PreTrainedModel

from shared.errors import ConfigError
from trainer.process.eight_and_four_bits import bitsandbytes_functional

log = logging.getLogger(__name__)

EXPERTS_DIM = 3  # (expert, outputs, inputs): transformers keeps all experts of a layer in one tensor
BLOCK = 64  # weights that share a scale
STORED = (torch.float32, torch.bfloat16, torch.float16)  # types of files, and of bitsandbytes


class FourBitLinear(nn.Linear):
    """`weight` is computed anew at each use, in the type of the layer that it stands for; nothing keeps it until the backward."""

    def __init__(self, layer: nn.Linear, codes: Tensor, state: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self._stored, self._dtype = state.dtype, layer.weight.dtype
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", state.absmax, persistent=False)
        self.register_buffer("levels", state.code, persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # nn.Linear declares a parameter; this is computed from the codes
        functional = _bitsandbytes()
        shape = torch.Size((self.out_features, self.in_features))
        state = functional.QuantState(
            self.scales, shape=shape, code=self.levels, blocksize=BLOCK, quant_type="nf4", dtype=self._stored
        )
        found: Tensor = functional.dequantize_4bit(self.codes, state).to(self._dtype)
        return found

    def forward(self, input: Tensor) -> Tensor:
        product: Tensor = _Product.apply(input, self)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
        return product if self.bias is None else product + self.bias


class _Product(torch.autograd.Function):
    """x Wᵀ with W frozen."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        return linear(input, layer.weight.to(input.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.weight.to(gradient.dtype), None


def quantize_layers(model: PreTrainedModel) -> None:
    """Replace every layer of `four_bit_layers` in place. Raises ConfigError if one's weights are not what 4 bits hold."""
    experts = [parameter for parameter in model.parameters() if parameter.ndim == EXPERTS_DIM]
    if experts:
        log.warning(
            "base_quantization nf4: %d tensors of experts are no linear layers and stay in full: %.1f MB of the model's %.1f MB",
            len(experts),
            sum(parameter.nbytes for parameter in experts) / 1e6,
            sum(parameter.nbytes for parameter in model.parameters()) / 1e6,
        )
    for name, layer in four_bit_layers(model).items():
        codes, state = _exact_codes(name, layer.weight.detach())
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, FourBitLinear(layer, codes, state))


def four_bit_layers(model: PreTrainedModel) -> dict[str, nn.Linear]:
    """By name: every linear layer but the head, of a size that blocks fill. Raises ConfigError if there is none."""
    head = model.get_output_embeddings()
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer is not head and layer.weight.numel() % BLOCK == 0
    }
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no linear layer whose weights are a multiple of {BLOCK}")
    return layers


def four_bit_weights(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of all 4-bit layers by their names in the model, on the CPU."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, FourBitLinear)}
    return {f"{name}.weight": layer.weight.to(dtype).cpu() for name, layer in layers.items()}


def nearest(weights: Tensor) -> Tensor:
    """What 4 bits hold of `weights`, in their type. Its own nearest is itself."""
    functional = _bitsandbytes()
    found: Tensor = functional.dequantize_4bit(*_codes(weights))
    return found


def _codes(weights: Tensor) -> tuple[Tensor, Any]:
    found: tuple[Tensor, Any] = _bitsandbytes().quantize_4bit(
        weights.contiguous(), blocksize=BLOCK, quant_type="nf4", compress_statistics=False
    )
    return found


def _exact_codes(name: str, weights: Tensor) -> tuple[Tensor, Any]:
    """The codes from which `weights` come back bit by bit, in whichever type the files have."""
    functional = _bitsandbytes()
    for dtype in (dtype for dtype in STORED if torch.promote_types(dtype, weights.dtype) == weights.dtype):
        stored = weights.to(dtype)
        codes, state = _codes(stored)
        if torch.equal(functional.dequantize_4bit(codes, state).to(weights.dtype), weights):
            return codes, state
    error = float((nearest(weights.float()) - weights.float()).norm() / weights.float().norm())
    raise ConfigError(
        f"base_quantization nf4: {name} holds, in {weights.dtype}, other numbers than 4 bits do (relative difference "
        f"{error:.2g}), and engines sample from these: expected a model that `tandem quantize --model_name_or_path MODEL "
        "--output_dir QUANTIZED` has written, and a dtype that holds the numbers of its files"
    )


def _bitsandbytes() -> Any:
    return bitsandbytes_functional("base_quantization nf4")
