"""Load a model so that only the first process, or the first of each stage, holds all of it: fsdp_cpu_ram_efficient_loading of
assets/fsdp2.yml.

    every process   empty_model: all layers, no values ─▶ cut, shard ─▶ fill: memory for its shard ─▶ shard of each tensor
    the first       reads the files, on the host                                                      ──one tensor at a time──┘

Only the first process, or the first of each stage, needs the weights' files; the others read config.json.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from shared.errors import ConfigError
from shared.images.families.model_class import auto_class
from trainer.modeling.model import DTYPES, experts_implementation_for, load_config, load_model
from trainer.modeling.trainable import choose_trained
from trainer.process.parallel import Parallel
from trainer.process.peers import Peers
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
    loads = parallel.is_main if parallel.pipeline is None else parallel.pipeline.stage.rank == 0
    state = load_model(directory, dtype=dtype).state_dict() if loads else {}
    if parallel.pipeline is not None:
        _fill_stage(model, state, parallel.pipeline.stage)
    else:
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))


@torch.no_grad()
def _fill_stage(model: PreTrainedModel, state: Mapping[str, Tensor], stage: Peers) -> None:
    """From the stage's first process: torch's own function knows one first process for all."""
    for name, parameter in model.named_parameters():
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=stage.device)
        if stage.rank == 0:
            whole.copy_(state[name])
        dist.broadcast(whole, group=stage.group, group_src=0)
        if isinstance(parameter, DTensor):
            part = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(part.to_local())
        else:
            parameter.copy_(whole)
