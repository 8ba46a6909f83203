"""What is spared of memory, for time: activations computed again or moved away, optimizer states on the host.

    logprob_chunk              logits of so many log-probs exist at a time (`trainer/modeling/logprobs.py`)
    activation_checkpointing   a layer keeps its input alone; its inside is computed again in the backward (one more forward)
    activation_offload         … and that input lies in host memory until then
    optimizer_offload          parameters, gradients and optimizer states lie in host memory; a layer's parameters are on the
                               device while it computes, and the optimizer steps on the CPU (FSDP2's CPUOffloadPolicy)

None of them changes a gradient. On a CPU the host's memory is the device's: checkpointing spares as much there, and the two
offloads have nothing to move and are not applied.
"""

import dataclasses
from typing import Self

from pydantic import BaseModel, Field, model_validator
from transformers import PreTrainedModel

from trainer.parallel import Parallel


class MemorySettings(BaseModel):
    """The settings; `TrainerConfig` and `SftConfig` have them by the same names."""

    logprob_chunk: int = Field(1024, gt=0, description="Log-probs computed at a time: bounds the logits in memory.")
    activation_checkpointing: bool = Field(
        False, description="Keep each layer's input alone and compute the layer again in the backward."
    )
    activation_offload: bool = Field(False, description="Keep those inputs in host memory.")
    optimizer_offload: bool = Field(
        False, description="Keep parameters and optimizer states in host memory, and step there. Nothing on a CPU."
    )

    @model_validator(mode="after")
    def an_offload_of_activations_needs_their_checkpointing(self) -> Self:
        if self.activation_offload and not self.activation_checkpointing:
            raise ValueError("activation_offload moves what activation_checkpointing keeps; expected that on too")
        return self

    def memory(self) -> "MemorySettings":
        """These settings alone, of whatever they are a part."""
        return MemorySettings(**{name: getattr(self, name) for name in MemorySettings.model_fields})


def checkpoint_layers(model: PreTrainedModel, memory: MemorySettings, parallel: Parallel) -> None:
    """Recompute every decoder layer in the backward where `memory`, or the launcher's settings, ask for it.

    Raises ValueError for a model without support for it.
    """
    if memory.activation_checkpointing or parallel.settings.activation_checkpointing:
        # non-reentrant: the only kind that passes keyword arguments (BlockMask, spans) and gradients of several inputs
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs={"use_reentrant": False},
            offload=memory.activation_offload and parallel.device.type != "cpu",  # it pins, which needs an accelerator
        )


def with_optimizer_offload(parallel: Parallel, memory: MemorySettings) -> Parallel:
    """`parallel` with settings that keep parameters and optimizer states on the host; as it is on a CPU."""
    if not memory.optimizer_offload or parallel.device.type == "cpu":
        return parallel
    return dataclasses.replace(parallel, settings=dataclasses.replace(parallel.settings, offload_params=True))
