"""One rank of a trainer of many, with tensors that have shapes and no memory: what its step would hold, by PyTorch's own tracker.

`FakeTensorMode` and the process group "fake" let one rank of 8 to 512 run alone, the first of a stage: `cut_stages`,
`spread_experts`, `cut_layers`, `cut_sequences`, `checkpoint_layers`, `shard_model`, `forward_row`, `RowPipeline` and
`make_optimizers` are the trainer's, the layers are transformers', collectives and messages return at once, and
`FSDPMemTracker` (torch/distributed/_tools/fsdp2_mem_tracker.py) counts every storage that is alive.

What is set as on a GPU stands in `fake_kernels.py`. With `ep_size` the experts of a rank get `received` times an equal share of
the tokens. Allocations of kernels themselves, the CUDA context and the buffers of NCCL are not counted.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForCausalLM

from scripts.bench.fake_kernels import CAUSAL, as_on_a_gpu
from scripts.bench.synthetic import growing
from tandem.launch.trainer_memory import TrainedAs
from tandem.plan.models import ModelShape
from tandem.plan.planned_rank import Layout, TrainedRow
from trainer.modeling.context_parallel import check_slices, of_slices
from trainer.modeling.expert_parallel import expert_modules, spread_experts
from trainer.modeling.forward import Forwarded, TreeLM, forward_row
from trainer.modeling.forward_ways import Way
from trainer.modeling.memory import checkpoint_layers
from trainer.modeling.model import DTYPES
from trainer.modeling.pipeline import RowPipeline
from trainer.modeling.pipeline_parallel import cut_stages
from trainer.modeling.tensor_parallel import cut_layers
from trainer.modeling.trainable import choose_trained
from trainer.process import parallel as processes
from trainer.process.parallel import Parallel, Sizes
from trainer.process.private_apis import layer_class_names
from trainer.process.shard_settings import PRECISIONS, ShardSettings
from trainer.process.sharding import shard_model
from trainer.settings.memory import MemorySettings
from trainer.settings.optimizer import OptimizerConfig
from trainer.settings.trained_parts import LoraSettings, Trainable
from trainer.step.optimizer import by_mesh, make_optimizers
from trainer.trees.packing import Row, pack
from trainer.trees.tree import merge


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


def tracked_step(shape: ModelShape, layout: Layout, trained: TrainedAs, row: TrainedRow, stage: int = 0) -> TrackedPeak:
    """The first rank of `stage`, in this process, which must have no process group."""
    dist.init_process_group("fake", rank=stage * layout.stage_ranks, world_size=layout.ranks, store=FakeStore())
    try:
        with as_on_a_gpu(row.received), patch.object(processes, "read_shard_settings", lambda _: _settings(row)):
            sizes = Sizes(layout.tp, layout.cp, layout.pp, layout.ep)
            parallel = processes._described(torch.device("cpu"), layout.ranks, sizes)
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
    stage = cut_stages(model, parallel, dtype=PRECISIONS[parallel.settings.precision] or DTYPES[trained.dtype])
    spread_experts(model, parallel)
    cut_layers(model, parallel.mesh["tp"], parallel.device, with_experts=parallel.experts is None)
    check_slices(model, parallel.context, tp_size=layout.tp, obstacle=None)
    lm = TreeLM(model, parallel.context, tp_size=layout.tp, stage=stage)
    name = of_slices(CAUSAL, parallel.context)
    model.set_attn_implementation(name)
    lm.way = Way(name, trees=True)
    checkpoint_layers(model, MemorySettings(activation_checkpointing=row.checkpointing), parallel)
    experts = expert_modules(model).values() if parallel.experts else ()
    shard_model(lm, layer_class_names(model), parallel, experts=experts)
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
            # the tracker knows one forward: a further one begins anew, and what is alive stays counted
            lm.register_forward_pre_hook(lambda *_: tracker.reset_mod_stats(), prepend=True)
            _gradients(lm, [row] * _count(planned, parallel), planned, parallel)
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


def _count(planned: TrainedRow, parallel: Parallel) -> int:
    """Of rows after which each further one adds nothing: those that are in flight in this stage, and one more."""
    pipeline = parallel.pipeline
    in_flight = 1 if pipeline is None else pipeline.peers.size - pipeline.peers.rank
    return min(planned.rows, in_flight + 1)


def _gradients(lm: TreeLM, rows: Sequence[Row], planned: TrainedRow, parallel: Parallel) -> None:
    """As `Accumulator` makes them; the loss is the sum of the log-probs."""

    def loss(_: int, forwarded: Forwarded) -> Tensor:
        return forwarded.logprob_E.sum() * parallel.num_shards

    if lm.stage is not None:
        options: dict[str, Any] = {"chunk": planned.logprob_chunk, "reduce_each_row": planned.reduces_each}
        RowPipeline(lm, parallel.device, attn=lambda _: None, **options).train(rows, loss)
        return
    fsdp: Any = lm  # `fully_shard` has given it FSDPModule's methods
    for index, row in enumerate(rows):
        fsdp.set_requires_gradient_sync(planned.reduces_each or index == len(rows) - 1)
        loss(index, forward_row(lm, row, chunk=planned.logprob_chunk, attn=lambda _: None)).backward()


def _bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def _row(planned: TrainedRow) -> Row:
    """One sequence, whose last tokens are trained."""
    tokens, trained = planned.tokens, planned.trained_tokens
    (row,) = pack([merge(growing(1, prompt=tokens - trained, reply=trained, observation=0))], 2 * tokens)
    return row
