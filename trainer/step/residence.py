"""Where the parameters and optimizer states are: on the device for a step, on the host between steps of a shared device.

Both moves keep the parameters' identity, so that optimizer and sharding go on with them. Nothing moves on a CPU, nor with
`optimizer_offload`, which keeps everything on the host anyway; the allocator's free blocks are returned in any case. A reference
model with `reference_offload` is on the host already.
"""

import gc

import torch

from trainer.modeling.forward import TreeLM
from trainer.step.learner import Learner

HOST = torch.device("cpu")


def to_host(learner: Learner, device: torch.device) -> None:
    """Free the device's memory of this process but its context and cuBLAS's workspaces (64 MiB on an H200)."""
    for module in _models(learner):
        module.free_features()
    _move(learner, HOST, device)
    if device.type != "cpu":
        gc.collect()
        torch.accelerator.synchronize(device)
        torch.get_device_module(device).empty_cache()


def to_device(learner: Learner, device: torch.device) -> None:
    _move(learner, device, device)


def _move(learner: Learner, target: torch.device, device: torch.device) -> None:
    if device.type == "cpu" or learner.lives_on_host:
        return
    for module in _models(learner):
        module.to(target)
    for state in (state for optimizer in learner.optimizers for state in optimizer.state.values()):
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                state[name] = value.to(target)


def _models(learner: Learner) -> list[TreeLM]:
    reference = learner.reference
    return [learner.lm, reference.lm] if reference is not None and reference.stays_on_device else [learner.lm]
