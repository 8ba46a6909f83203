"""Load a model so that only the first process holds all of it: fsdp_cpu_ram_efficient_loading of assets/fsdp2.yml.

    every process   empty_model: all layers, no values ─▶ cut, shard ─▶ fill: memory for its shard ─▶ shard of each tensor
    the first       reads the files, on the host                                                      ──one tensor at a time──┘

Only the first process needs the weights' files; the others read config.json.
"""

from pathlib import Path

import torch
from accelerate import init_empty_weights
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import PreTrainedModel

from shared.errors import ConfigError
from shared.images.families.model_class import auto_class
from trainer.modeling.model import DTYPES, experts_implementation_for, load_config, load_model
from trainer.modeling.trainable import choose_trained
from trainer.process.parallel import Parallel
from trainer.settings.trained_parts import Trainable


def empty_model(
    directory: Path, *, dtype: str, attn_implementation: str, trainable: Trainable, dropout: bool = False
) -> PreTrainedModel:
    """Like `load_model`, with parameters on the meta device. Buffers, which are in no file, are computed.

    Raises ConfigError for new adapters, whose initial values are in no file, and like `choose_trained`.
    """
    if trainable.lora:
        raise ConfigError(
            f"lora_rank is {trainable.lora.lora_rank} and fsdp_cpu_ram_efficient_loading true; expected one of them: adapters "
            "are made where the whole model is"
        )
    config = load_config(directory)
    with init_empty_weights(include_buffers=False):
        model = auto_class(config, directory).from_config(
            config,
            dtype=DTYPES[dtype],
            attn_implementation=attn_implementation,
            experts_implementation=experts_implementation_for(dtype),
        )
    assert isinstance(model, PreTrainedModel)
    model.tie_weights()
    choose_trained(model, trainable)
    model.config.use_cache = False
    model.train(dropout)
    return model


def fill(model: PreTrainedModel, directory: Path, parallel: Parallel, *, dtype: str) -> None:
    """Load the values of an `empty_model` after it was cut and sharded. Every rank must call it."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    device = torch.device("cpu") if parallel.settings.offload_params else parallel.device
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    state = load_model(directory, dtype=dtype).state_dict() if parallel.is_main else {}
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
