"""The processes that train together, and their devices. Accelerate launches the processes and holds their state.

    pp          the processes of one line work on the same rows, each with some of the layers (`modeling/pipeline_parallel.py`)
    mesh        "shard" × "tp", of the same layers: parameters are sharded over both
    shard       data × cp: rows are distributed over data only
    tp          the processes of one line work on the same rows, each with its part of every layer (`modeling/tensor_parallel.py`)
    cp          the processes of one line work on the same rows, each with a slice of the tokens (`modeling/context_parallel.py`)
    experts     "same" × "ep", of the same layers: experts alone are sharded over it; one line of "ep" holds all
                (`modeling/expert_parallel.py`)

Promise: all launched processes train together, or the start is refused.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.distributed import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from shared.errors import ConfigError
from shared.processes.waits import Wait
from trainer.process.peers import COLLECTIVE_TIMEOUT_S, Peers, Pipeline, peers_of, pipeline_of
from trainer.process.private_apis import forget_group
from trainer.process.shard_settings import ShardSettings, read_shard_settings

log = logging.getLogger(__name__)


class LaunchError(ConfigError):
    """The started processes differ from the launched ones."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """This process and its groups. Every rank must call the collectives below in the same order.

    `data`: one process per data shard; processes with the same `data.rank` have the same rows. `context`: processes with the
    same rows and the same part of every layer, each with a slice of the tokens. `data`, `context`, `mesh` and `experts` are of
    this process's stage.
    """

    everyone: Peers
    data: Peers
    context: Peers
    device: torch.device
    mesh: DeviceMesh  # "shard" × "tp"
    settings: ShardSettings
    pipeline: Pipeline | None = None  # None: one stage
    experts: DeviceMesh | None = None  # "same" × "ep"; None: experts are parameters like all others

    @property
    def rank(self) -> int:
        return self.everyone.rank

    @property
    def world_size(self) -> int:
        return self.everyone.size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_first_of_its_rows(self) -> bool:
        """One of the processes that have the same rows."""
        return self.context.rank == 0 and self.mesh.get_local_rank("tp") == 0 and self.is_first_stage

    @property
    def is_first_stage(self) -> bool:
        return self.pipeline is None or self.pipeline.peers.rank == 0

    @property
    def pp_size(self) -> int:
        """Number of stages."""
        return 1 if self.pipeline is None else self.pipeline.peers.size

    @property
    def stage_size(self) -> int:
        """Number of processes that share the parameters of this process's stage."""
        return self.world_size if self.pipeline is None else self.pipeline.stage.size

    @property
    def num_shards(self) -> int:
        """Number of processes over which FSDP averages a gradient; the loss is multiplied by it to get the sum."""
        return self.data.size * self.context.size

    def barrier(self) -> None:
        """Wait for all ranks; implemented as a sum, which both backends support on the device in use."""
        self.everyone.sum_scalars([0.0])

    def sum_over_tokens(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over processes with different tokens: all except those that share a layer."""
        whole = tensor.clone()
        dist.all_reduce(whole, group=self.mesh.get_group("shard"))
        return whole

    def sum_over_stages(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the stages of a model; each has its layers."""
        if self.pipeline is None:
            return tensor
        whole = tensor.clone()
        dist.all_reduce(whole, group=self.pipeline.peers.group)
        return whole

    def max_int(self, value: int) -> int:
        """The maximum over ranks."""
        tensor = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return int(tensor.item())

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


@contextmanager
def parallel_session(
    device: str = "auto",
    num_threads: int = 0,
    *,
    tp_size: int = 1,
    cp_size: int = 1,
    pp_size: int = 1,
    ep_size: int = 1,
) -> Iterator[Parallel]:
    """Join the launched processes (or run as a single one), and leave the group cleanly at the end.

    `device` is cpu, or the kind of an accelerator of PyTorch, such as cuda; auto: the one that is there, else cpu.
    `num_threads`: CPU threads per process; 0: OMP_NUM_THREADS, else one. Raises LaunchError if fewer processes started than were
    launched, or if `tp_size` × `cp_size` × `pp_size`, or `ep_size`, does not divide their number.
    """
    world_size = _launched_processes(os.environ)
    if device == "auto":
        device = _accelerator() or "cpu"
    if device == "cpu":
        # One by default: next to a busy process, spinning threads made steps up to 50 times slower.
        torch.set_num_threads(num_threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    if device != "cuda":
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # else Accelerate warns and chooses
    _init_process_group(device, world_size)
    try:
        state = PartialState(cpu=device != "cuda")  # of other accelerators it has a list of its own
        own = (
            torch.device(device) if device == "cpu" else torch.device(device, torch.accelerator.current_device_index())
        )
        _check_world_size(state.num_processes, own, world_size)
        parallel = _described(own, world_size, Sizes(tp_size, cp_size, pp_size, ep_size))
        if parallel.is_main:
            log.info(
                "parallel world_size=%d tp_size=%d cp_size=%d pp_size=%d ep_size=%d device=%s settings=%s",
                world_size,
                tp_size,
                cp_size,
                pp_size,
                ep_size,
                device,
                parallel.settings,
            )
        yield parallel
        parallel.barrier()  # leave together: a peer that closes its connections early can abort the others
    finally:
        dist.destroy_process_group()
        forget_group(PartialState)


class Sizes(NamedTuple):
    """Of the settings of the same names with `_size`."""

    tp: int
    cp: int
    pp: int
    ep: int


def _described(device: torch.device, world_size: int, sizes: Sizes) -> Parallel:
    shared = sizes.tp * sizes.cp * sizes.pp
    if world_size % shared:
        named = (("tp_size", sizes.tp), ("cp_size", sizes.cp), ("pp_size", sizes.pp))
        given = " and ".join(f"{n} is {s}" for n, s in named if s > 1)
        raise LaunchError(f"{given}, but {world_size} processes came up; expected a multiple of {shared}")
    if world_size % (sizes.ep * sizes.pp):
        stages = f" and pp_size {sizes.pp}" if sizes.pp > 1 else ""
        raise LaunchError(
            f"ep_size is {sizes.ep}{stages}, but {world_size} processes came up; expected a multiple of {sizes.ep * sizes.pp}"
        )
    everyone, settings = Peers(dist.get_rank(), world_size, device), read_shard_settings(os.environ)
    layers = _of_stage(device, sizes.pp, shard=world_size // (sizes.tp * sizes.pp), tp=sizes.tp)
    mesh, pipeline = (layers, None) if sizes.pp == 1 else (layers["shard", "tp"], pipeline_of(layers, device))
    of_stage = everyone if pipeline is None else pipeline.stage
    experts = None
    if sizes.ep > 1:
        experts = _of_stage(device, sizes.pp, same=world_size // (sizes.ep * sizes.pp), ep=sizes.ep)["same", "ep"]
    if sizes.cp == 1:
        data = of_stage if sizes.tp == 1 else peers_of(mesh["shard"], device)
        return Parallel(everyone, data, Peers(0, 1, device), device, mesh, settings, pipeline, experts)
    # the same processes in the same order, with separate shard dimensions: only its groups are used
    lines = _of_stage(device, sizes.pp, data=world_size // shared, cp=sizes.cp, tp=sizes.tp)
    data, context = peers_of(lines["data"], device), peers_of(lines["cp"], device)
    return Parallel(everyone, data, context, device, mesh, settings, pipeline, experts)


def _of_stage(device: torch.device, pp_size: int, **sizes: int) -> DeviceMesh:
    """A mesh of these dimensions, in front of them that of the stages, if there are several."""
    named = {"pp": pp_size, **sizes} if pp_size > 1 else sizes
    return init_device_mesh(device.type, tuple(named.values()), mesh_dim_names=tuple(named))


def rank_0_wait(what: str) -> Wait:
    """Of the other ranks, for what rank 0 looks for."""
    return Wait("rank 0", f"it waits for {what}, and its own heartbeat says why", f"it has {what}")


def _accelerator() -> str | None:
    """The kind of PyTorch's accelerator on this machine, or None."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def _launched_processes(environment: Mapping[str, str]) -> int:
    """Total number of processes, from the launcher's environment. Raises LaunchError, see below."""
    launched_by_accelerate = "ACCELERATE_MIXED_PRECISION" in environment
    if "RANK" not in environment:
        # `accelerate launch --cpu --num_processes 2` starts ONE process; only MASTER_PORT shows the intention
        if launched_by_accelerate and "MASTER_PORT" in environment:
            raise LaunchError(
                "accelerate launch was asked for several processes but started one without a rank; launch with "
                "`--config_file assets/fsdp2.yml` and without `--cpu` (use_cpu must be false in the file, also on CPU)"
            )
        world_size = 1
    else:
        world_size = int(environment["WORLD_SIZE"])
    expected = int(environment.get("TANDEM_NUM_PROCESSES", world_size))
    if expected != world_size:
        raise LaunchError(
            f"TANDEM_NUM_PROCESSES says {expected} trainer processes, {world_size} came up; "
            f"launch with `accelerate launch --config_file assets/fsdp2.yml --num_processes {expected}`"
        )
    return world_size


def _init_process_group(device: str, world_size: int) -> None:
    """Call before Accelerate's state, which then uses this group instead of creating one."""
    backend = "gloo"
    if device != "cpu":  # gloo carries objects and checkpoints; tensors the device's own: NCCL for CUDA
        backend = f"cpu:gloo,{device}:{dist.get_default_backend_for_device(device)}"
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:  # a single process needs no port
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=world_size, timeout=timeout)


def _check_world_size(reported: int, device: torch.device, world_size: int) -> None:
    """Refuse independent copies that each act as main process."""
    present = torch.ones(1, device=device)
    dist.all_reduce(present)
    counts = {"Accelerate reports": reported, "the group counts": int(present.item())}
    if any(count != world_size for count in counts.values()):
        raise LaunchError(f"{world_size} processes were launched, but {counts}; launch with assets/fsdp2.yml")
