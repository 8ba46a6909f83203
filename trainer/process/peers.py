"""Groups of the processes that train together: peers that share something, and the stages of a pipeline."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

COLLECTIVE_TIMEOUT_S = 1800.0  # a rank may write a checkpoint or wait for data while others wait in a collective


@dataclass(frozen=True, slots=True)
class Peers:
    """A group of processes including this one. All must make the same calls in the same order."""

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None  # None: all launched processes

    def sum_scalars(self, values: list[float]) -> list[float]:
        """Sums over the peers, in float64."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, group=self.group)
        return tensor.tolist()

    def gather_objects(self, value: Any) -> list[Any]:
        """All-gather of small plain values, in order of rank; they are pickled."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages of a model. `peers`: this process's counterparts in all stages, in order; `stage`: all processes of its own stage.

    Messages of each direction have a group of their own: all sends and receives in it are in the order of the rows, so none can
    wait for one of the other direction.
    """

    peers: Peers
    stage: Peers
    forwards: dist.ProcessGroup
    backwards: dist.ProcessGroup


def peers_of(line: DeviceMesh, device: torch.device) -> Peers:
    return Peers(line.get_local_rank(), line.size(), device, line.get_group())


def pipeline_of(layers: DeviceMesh, device: torch.device) -> Pipeline:
    """Every rank makes all groups, in the same order."""
    ranks = layers.mesh.flatten(1)  # [stage, process of it]
    number, place = (int(index) for index in torch.nonzero(ranks == dist.get_rank())[0])
    limit = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    stages = [dist.new_group(stage.tolist(), timeout=limit) for stage in ranks]
    forwards, backwards = ([dist.new_group(line.tolist(), timeout=limit) for line in ranks.T] for _ in range(2))
    peers = peers_of(layers["pp"], device)
    stage = Peers(place, ranks.shape[1], device, stages[number])
    return Pipeline(peers, stage, forwards[place], backwards[place])
