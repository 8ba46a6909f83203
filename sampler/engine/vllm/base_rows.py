"""Rows without an adapter, in a batch where others have one, on a CPU.

vLLM marks such rows with the index -1. Its GPU kernels skip them. Its torch kernels (0.32.0, `torch_ops/lora_ops.py`) take -1 for
the last slot: the row gets the adapter of that slot, even one that was unloaded (vllm-project/vllm, pull requests 48421 and
49656).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Shrink = Callable[..., None]


def skip_base_rows() -> None:
    """In this process, before vLLM compiles its model. A row whose part of the first product is 0 gets 0 from the second."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    if lora_ops.bgmv_shrink.__module__ == lora_ops.__name__:
        lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = _skipping(lora_ops.bgmv_shrink)


def _skipping(shrink: Shrink) -> Shrink:
    def bgmv_shrink(
        inputs: torch.Tensor, lora_a: torch.Tensor, output: torch.Tensor, slots: torch.Tensor, scaling: float = 1.0
    ) -> Any:
        shrink(inputs, lora_a, output, slots, scaling)
        output.masked_fill_((slots < 0)[:, None], 0.0)

    return bgmv_shrink
