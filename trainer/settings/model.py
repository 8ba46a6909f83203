"""Which model is trained and how it is computed: sections that reinforcement learning and supervised training share."""

from typing import Literal

from pydantic import Field

from shared.configuration.sections import Section
from shared.files.hub import ModelFolder
from trainer.settings.trained_parts import Trainable, TrainedParts


class ModelSettings(TrainedParts):
    """Which model is trained, what of it, and how it is computed. None changes what is trained, but freeze, lora and dropout."""

    model_name_or_path: ModelFolder = Field(
        description="Hugging Face directory with the weights the run starts from, or a name of the Hub."
    )
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="Type of parameters and optimizer states: float32, bfloat16 or float64."
    )
    attn_implementation: Literal["auto", "by_node", "flex_attention", "sdpa", "eager"] = Field(
        "auto", description="by_node, flex_attention, sdpa, eager, or auto: the first that fits."
    )
    prefix_trees: bool = Field(
        True,
        description="Compute shared prefixes once. False: one sequence at a time, as for models that cannot take a tree.",
    )
    dropout: bool = Field(
        False,
        description="Train with the model's own dropout, layer drop and router noise. True: one sequence at a time, and "
        "log-probs are those of a model with parts missing, which no engine has sampled from.",
    )
    compile_layers: bool = Field(
        False,
        description="Compile the layers (torch.compile): slower first steps; docs/train/memory.md says when it pays.",
    )

    def trainable(self, seed: int) -> Trainable:
        return Trainable(freeze=self.freeze, train_vision=self.train_vision, lora=self.lora, seed=seed)


class ParallelSettings(Section):
    """Devices and processes: how one step's computation is divided."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda.")
    num_threads: int = Field(0, ge=0, description="CPU threads per process. 0: OMP_NUM_THREADS, or one if it is unset.")
    tp_size: int = Field(
        1,
        gt=0,
        description="Processes that share each layer, and its experts (tensor and expert parallelism); the rest share the data.",
    )
    cp_size: int = Field(
        1,
        gt=0,
        description="Processes that share each row's tokens (context parallelism); tp_size × cp_size share a row.",
    )
    pp_size: int = Field(
        1,
        gt=0,
        description="Stages of consecutive layers that rows pass one after the other (pipeline parallelism): for more machines.",
    )
    ep_size: int = Field(
        1,
        gt=0,
        description="Processes that hold the experts together and send each other tokens (expert parallelism). 1: experts are "
        "shared as tp_size shares layers.",
    )
