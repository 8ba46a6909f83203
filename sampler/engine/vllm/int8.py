"""`--quantization int8`: vLLM loads each checkpoint, and each bucket of a broadcast, with linear layers rounded to 8 bits.

vLLM itself rounds to 8-bit floats (`--quantization fp8`, on a GPU), and to integers only experts; its kernels for integers want
a checkpoint that is rounded already. So our loader rounds what it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from vllm.config import LoadConfig
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.platforms import current_platform

from sampler.engine.loading.int8 import QUANTIZATION_CONFIG, largest_on, names_of_linears, rounded_linears
from shared.errors import ConfigError

INT8 = "int8"
LOADER = "tandem_int8"


def round_to_int8(engine_args: Any, folder: str) -> None:
    """Changes vLLM's arguments, of which `quantization` is "int8". Raises ConfigError."""
    if engine_args.enable_lora:
        raise ConfigError("--quantization int8 and --enable-lora: not tested together; expected one of them")
    if engine_args.load_format != "auto":
        raise ConfigError(f"--quantization int8 and --load-format {engine_args.load_format}; expected auto")
    engine_args.quantization = None  # vLLM reads it from the configuration
    engine_args.load_format = LOADER
    engine_args.hf_overrides = {**(engine_args.hf_overrides or {}), "quantization_config": QUANTIZATION_CONFIG}
    try:
        _linears_of(folder)
    except ValueError as error:
        raise ConfigError(f"--quantization int8: {folder}: {error}; expected a model of linear layers") from error


def loads_int8(load_config: LoadConfig) -> bool:
    return bool(load_config.load_format == LOADER)


def number_type(vllm_config: Any) -> str:
    """What the engine computes with, as it reports it: float32, bfloat16, int8, fp8, …"""
    if loads_int8(vllm_config.load_config):
        return INT8
    return vllm_config.model_config.quantization or str(vllm_config.model_config.dtype).removeprefix("torch.")


def rounded_for(model_config: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    return rounded_linears(weights, _linears_of(model_config.tokenizer), largest_on(current_platform.device_type))


@cache
def _linears_of(folder: str) -> frozenset[str]:
    """By the folder that the engine started with: each version has its shape."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("its config.json has a quantization_config")
    with torch.device("meta"):
        return names_of_linears(AutoModelForCausalLM.from_config(config))


@register_model_loader(LOADER)
class Int8Loader(DefaultModelLoader):  # type: ignore[misc]  # vLLM is not installed where types are checked
    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(dataclasses.replace(load_config, load_format="auto"))

    def get_all_weights(self, model_config: Any, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        return rounded_for(model_config, super().get_all_weights(model_config, model))


def _keep_scales() -> None:
    """oneDNN's matrices point to the scales that they were made with. vLLM 0.32.0 copies those of a later version to where the
    first ones lie and frees them, after which log-probs were NaN."""
    pack = CPUInt8ScaledMMLinearKernel.process_weights_for_onednn

    def and_keep(self: CPUInt8ScaledMMLinearKernel, layer: torch.nn.Module) -> None:
        pack(self, layer)
        self.tandem_scales = getattr(layer, self.layer_param_names[1])

    CPUInt8ScaledMMLinearKernel.process_weights_for_onednn = and_keep


_keep_scales()
