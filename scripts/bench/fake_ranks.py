"""One rank of a trainer of many, with tensors that have shapes and no memory: what its step would hold, by PyTorch's own tracker.

`FakeTensorMode` and the process group "fake" let rank 0 of 8 to 512 run alone: `cut_layers`, `cut_sequences`,
`checkpoint_layers`, `shard_model`, `forward_row` and `make_optimizers` are the trainer's, the layers are transformers', the
collectives return at once, and `FSDPMemTracker` (torch/distributed/_tools/fsdp2_mem_tracker.py) counts every storage that is
alive.

The tensors are a CPU's, since this build of PyTorch has no autograd for others. So three things are set as on a GPU: the head
computes all of the vocabulary at once, its products give float32 without a cast of the weight, and attention is a causal
flash kernel, which saves what FlexAttention saves. Allocations of kernels themselves, the CUDA context and the buffers of
NCCL are not counted.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import init_empty_weights
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import _sharding_prop as propagation
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from scripts.bench.synthetic import growing
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from trainer.modeling import forward as trainer_forward
from trainer.modeling import logprobs
from trainer.modeling.context_parallel import OVER_SLICES, attend, check_slices, of_slices
from trainer.modeling.forward import TreeLM, forward_row
from trainer.modeling.forward_ways import Way
from trainer.modeling.memory import checkpoint_layers
from trainer.modeling.model import DTYPES
from trainer.modeling.tensor_parallel import cut_layers
from trainer.modeling.trainable import choose_trained
from trainer.process import parallel as processes
from trainer.process.parallel import Parallel, Sizes
from trainer.process.peers import Peers
from trainer.process.private_apis import layer_class_names
from trainer.process.shard_settings import ShardSettings
from trainer.process.sharding import shard_model
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.trained_parts import LoraSettings, Trainable
from trainer.step.optimizer import by_mesh, make_optimizers
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge

CAUSAL = "causal_kernel"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrackedPeak:
    """Bytes that are alive at the peak of a step, the second and later ones, which have the optimizer's states."""

    weights: int  # of this rank, with buffers
    optimizer: int
    gradients: int  # reduced: this rank's
    gathered: int  # parameters put together, and the all-gathers' outputs
    activations: int  # made by a forward
    working: int  # made by the backward, with layers that are recomputed, gradients not yet reduced, the reduce-scatters' inputs

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


def tracked_step(shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow) -> TrackedPeak:
    """Rank 0 of `layout.ranks`, in this process, which must have no process group."""
    dist.init_process_group("fake", rank=0, world_size=layout.ranks, store=FakeStore())
    try:
        with _as_on_a_gpu(row), patch.object(processes, "read_shard_settings", lambda _: _settings(row)):
            parallel = processes._described(torch.device("cpu"), layout.ranks, Sizes(layout.tp, layout.cp, pp=1, ep=1))
            return _step(_model(shape, layout, trained, row, parallel), trained, row, parallel)
    finally:
        dist.destroy_process_group()


def _settings(row: TrainedRow) -> ShardSettings:
    return ShardSettings(precision="bf16" if row.mixed else "no")


def _model(shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, parallel: Parallel) -> TreeLM:
    """As `open_learner` makes it, without values and without trials."""
    config = AutoConfig.for_model(**shape.config())
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPES[trained.dtype], attn_implementation="sdpa")
        if trained.lora_rank:
            choose_trained(
                model, Trainable(lora=LoraSettings(lora_rank=trained.lora_rank, lora_alpha=2 * trained.lora_rank))
            )
    model.tie_weights()
    model.config.use_cache = False
    model.eval()
    cut_layers(model, parallel.mesh["tp"], parallel.device)
    check_slices(model, parallel.context, tp_size=layout.tp, obstacle=None)
    lm = TreeLM(model, parallel.context, tp_size=layout.tp)
    name = of_slices(CAUSAL, parallel.context)
    model.set_attn_implementation(name)
    lm.way = Way(name, trees=True)
    checkpoint_layers(model, MemorySettings(activation_checkpointing=row.checkpointing), parallel)
    shard_model(lm, layer_class_names(model), parallel)
    return lm


def _step(lm: TreeLM, trained: TrainedAs, planned: TrainedRow, parallel: Parallel) -> TrackedPeak:
    row = _row(planned)
    with FakeTensorMode(allow_non_fake_inputs=True):
        lm.to_empty(device=parallel.device)
        row = dataclasses.replace(row, **{name: of.clone() for name, of in row.columns().items() if of is not None})
        optim: Any = trained.optim
        optimizers = make_optimizers(lm, OptimizerConfig(optim=optim), parallel)
        own = [p for p in lm.parameters() if p.requires_grad]
        for parameter in own:
            parameter.grad = torch.zeros_like(parameter)
        for optimizer in optimizers:  # their states, as from the second step on
            optimizer.step()
            optimizer.zero_grad()
        states = [of for optimizer in optimizers for state in optimizer.state.values() for of in state.values()]
        tracker = FSDPMemTracker(lm)  # knows one optimizer at most: states are counted here
        tracker.track_inputs((row.ids_N,))
        with tracker:
            forwarded = forward_row(lm, row, chunk=planned.logprob_chunk, attn=lambda _: None)
            (forwarded.logprob_E.sum() * parallel.num_shards).backward()
            del forwarded
            for kind in by_mesh(own):
                torch.nn.utils.get_total_norm([p.grad for p in kind if p.grad is not None])
            for optimizer in optimizers:
                optimizer.step()
            peak = tracker.get_tracker_snapshot("peak")[parallel.device]
    parts = {str(getattr(name, "value", name)): size for name, size in peak.items()}
    return TrackedPeak(
        weights=parts["Sharded Param"] + parts["Buffer"] + parts["Inputs"],
        optimizer=sum(_bytes(of) for of in states if isinstance(of, Tensor) and of.ndim),
        gradients=parts["Sharded Grad"],
        gathered=parts["Unsharded Param"] + parts["All Gather"],
        activations=parts["Activation"],
        working=parts["Temp"] + parts["Unsharded Grad"] + parts["Reduce Scatter"],
    )


def _bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def _row(planned: TrainedRow) -> Row:
    """One sequence, whose last tokens are trained."""
    tokens, trained = planned.tokens, planned.trained_tokens
    (row,) = pack([merge(growing(1, prompt=tokens - trained, reply=trained, observation=0))], 2 * tokens)
    return row


@contextmanager
def _as_on_a_gpu(planned: TrainedRow) -> Iterator[None]:
    """See above; and of a slice's log-probs an equal share, since which ones it has depends on values."""

    def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        return a.new_empty(a.shape[0], b.shape[1], dtype=dtype)

    def own_part(num_tokens: int, predictor_U: Tensor, context: Peers) -> tuple[slice, Tensor]:
        length = num_tokens // context.size
        start = context.rank * length
        return slice(start, start + length), predictor_U.new_zeros(-(-len(predictor_U) // context.size))

    def blocks(weight_VD: Tensor, *, truncated: bool, backward: bool = False) -> list[slice]:
        count = len(weight_VD)
        return logprobs._chunks(count, logprobs.BACKWARD_BLOCK if backward else count)

    with (
        patch.object(logprobs, "_product", product),
        patch.object(logprobs, "_blocks", blocks),
        patch.object(trainer_forward, "own_part", own_part),
        patch.object(propagation, "detect_fake_mode", lambda: None),  # of its own: what it derives is not allocated
    ):
        yield


def _causal(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: Any) -> tuple[Tensor, None]:
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(CAUSAL, _causal)
AttentionInterface.register(OVER_SLICES + CAUSAL, lambda *args, **options: attend(CAUSAL, *args, **options))
for _name in (CAUSAL, OVER_SLICES + CAUSAL):
    AttentionMaskInterface.register(_name, lambda *_, **__: None)
