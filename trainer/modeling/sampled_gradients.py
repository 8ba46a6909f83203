"""A sample of each parameter's gradient, taken during the backward: no gradient is held completely."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainer.process.private_apis import end_sharded_forward

SAMPLE = 16384  # elements of each parameter's gradient


@contextmanager
def sampled_gradients(lm: nn.Module, sums: dict[str, Tensor]) -> Iterator[bool]:
    """In this context a backward adds a sample of each gradient to `sums` and keeps none. Yields whether any is trained."""

    def take(name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        local = arrived(gradient).detach().flatten()
        part = local[:: max(1, -(-len(local) // SAMPLE))].double().cpu()
        sums[name] = sums[name] + part if name in sums else part
        parameter.grad = None

    trained = {name: parameter for name, parameter in lm.named_parameters() if parameter.requires_grad}
    hooks = [p.register_post_accumulate_grad_hook(partial(take, name)) for name, p in trained.items()]
    try:
        yield bool(trained)
    finally:
        for hook in hooks:
            hook.remove()
        for name, parameter in trained.items():  # if a wrapper set it without the hook
            take(name, parameter)
        _settle(lm)


def arrived(gradient: Tensor) -> Tensor:
    """This process's shard, once it is there: before 2.13, torch calls hooks while a gradient is copied to host memory."""
    if not isinstance(gradient, DTensor):
        return gradient
    local, computing = gradient.to_local(), gradient.device_mesh.device_type
    if local.device.type != computing:
        torch.get_device_module(computing).synchronize()
    return local


def _settle(lm: nn.Module) -> None:
    """Reset sharded modules after a forward, including one that raised."""
    for module in lm.modules():
        if isinstance(module, FSDPModule):
            end_sharded_forward(module)
