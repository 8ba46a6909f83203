"""The frozen reference model. Its turn comes first in a step: log-probs of all rows, before the policy computes.

    reference_offload: false   its weights stay on the device
                       true    host ─copied─▶ device ▸ forward of every row ▸ freed, without a copy back

The policy's activations and gradients are then not there yet, so with the offload the peak of a step is that without a reference.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.modeling.attention import MaskBuilder
from trainer.modeling.forward import TreeLM, row_logprobs
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.trainable import adapters_off
from trainer.trees.packing import Row


class HostResident:
    """A frozen model with its values in host memory, on the device within `visit` alone. Its parameters stay the same objects."""

    def __init__(self, lm: TreeLM, device: torch.device) -> None:
        self._lm, self._device = lm, device
        self._values = [_pinned(tensor) for tensor in _local_tensors(lm)]
        self._free()

    @contextmanager
    def visit(self) -> Iterator[None]:
        self._lm.to_empty(device=self._device)
        try:
            for tensor, value in zip(_local_tensors(self._lm), self._values, strict=True):
                tensor.copy_(value, non_blocking=True)
            yield
        finally:
            self._free()

    def _free(self) -> None:
        self._lm.free_features()
        self._lm.to_empty(device="cpu")  # pages that are never written take no memory


class Reference:
    """`policy`: the trained model. With the same `lm`, the reference is what lies below its adapters, and shares its memory.

    Both are sharded already; every rank makes the same calls.
    """

    def __init__(
        self, lm: TreeLM, policy: TreeLM, device: torch.device, *, mask: MaskBuilder, chunk: int, offload: bool = False
    ) -> None:
        self.lm = lm
        self._below_adapters = lm is policy
        self._device, self._mask, self._chunk = device, mask, chunk
        moves = offload and not self._below_adapters and device.type != "cpu"
        self._on_host = HostResident(lm, device) if moves else None

    @property
    def stays_on_device(self) -> bool:
        """Whether it holds memory of its own there between steps."""
        return not self._below_adapters and self._on_host is None

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Of each row's entries, (E,). A model with experts chooses them by itself, also where `rows` have recorded ones."""
        own = [row.without_experts() for row in rows]
        with self._turn():
            if self.lm.stage is not None:
                pipeline = RowPipeline(self.lm, self._device, chunk=self._chunk, attn=self._mask)
                return [forwarded.logprob_E for forwarded in pipeline.scores(own)]
            moved = (row.to(self._device) for row in own)  # memory holds one
            return [row_logprobs(self.lm, row, chunk=self._chunk, attn=self._mask)[0] for row in moved]

    def _turn(self) -> AbstractContextManager[None]:
        if self._below_adapters:
            return adapters_off(self.lm)
        return nullcontext() if self._on_host is None else self._on_host.visit()


def _local_tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, of a sharded one this rank's part; one that has several names once."""
    tensors = [*module.parameters(), *module.buffers()]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach() for tensor in tensors]


def _pinned(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type != "cpu").copy_(tensor)
