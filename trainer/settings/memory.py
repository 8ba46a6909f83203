"""What a step gives up in time to save memory."""

from typing import Self

from pydantic import Field, model_validator

from shared.configuration.sections import Section


class MemorySettings(Section):
    """Less memory for more time: none of these changes a gradient."""

    logprob_chunk: int = Field(1024, gt=0, description="Log-probs computed at a time: bounds the logits in memory.")
    activation_checkpointing: bool = Field(
        False, description="Keep only each layer's input, and recompute the layer in the backward pass."
    )
    activation_offload: bool = Field(False, description="Keep those inputs in host memory.")
    reduce_each_row: bool = Field(
        False,
        description="Sum gradients over the processes after each row, not after the last one of an update: no process holds "
        "whole gradients of all parameters.",
    )
    optimizer_offload: bool = Field(
        False, description="Keep parameters and optimizer states in host memory, and step there. Nothing on a CPU."
    )
    reference_offload: bool = Field(
        False,
        description="Keep the frozen reference model in host memory, and copy it to the device for its turn at the start of each "
        "step. Nothing on a CPU.",
    )

    @model_validator(mode="after")
    def an_offload_of_activations_needs_their_checkpointing(self) -> Self:
        if self.activation_offload and not self.activation_checkpointing:
            raise ValueError("activation_offload moves what activation_checkpointing keeps; expected that on too")
        return self
