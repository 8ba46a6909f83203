"""Settings of the model's computation, shared by reinforcement learning and supervised training."""

from typing import Annotated

from pydantic import Field

from trainer.modeling.memory import MemorySettings

Positive = Annotated[int, Field(gt=0)]


class ComputeSettings(MemorySettings):
    """The settings; `TrainerConfig` and `SftConfig` have them by the same names. None changes what is trained, but `dropout`."""

    dtype: str = Field("float32", description="Of parameters and optimizer: float32, bfloat16 or float64.")
    attn_implementation: str = Field(
        "auto", description="by_node, flex_attention, sdpa, eager, or auto: the first that fits."
    )
    prefix_trees: bool = Field(
        True, description="Forward shared prefixes once. False, or for models that forbid it: one sequence at a time."
    )
    dropout: bool = Field(
        False,
        description="Train with the model's own dropout, layer drop and router noise. True: one sequence at a time, and "
        "log-probs are those of a model with parts missing, which no engine has sampled from.",
    )
    compile_layers: bool = Field(
        False, description="Compile the layers (torch.compile): slower first steps; docs/memory.md says when it pays."
    )
    device: str = Field("auto", description="auto, cpu or cuda.")
    num_threads: int = Field(0, ge=0, description="CPU threads a process; 0 follows OMP_NUM_THREADS, else one.")
    tp_size: Positive = Field(
        1,
        description="Processes that share each layer, and its experts (tensor and expert parallelism); the rest share the data.",
    )
    cp_size: Positive = Field(
        1, description="Processes that share each row's tokens (context parallelism); tp_size × cp_size share a row."
    )
