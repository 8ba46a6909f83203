"""Receives weights in torch.distributed groups that the engine has joined.

As in SGLang 0.5.23: rank 0 sends, this engine is rank `rank_offset`; a request's tensors arrive as one tensor of bytes
("flattened_bucket"), or one by one. Differences on purpose: a stalled peer is waited for one minute, not thirty; and
tensors that do not fit the model (names, shapes, non-finite values) are refused after receipt, with nothing changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, distributed_c10d
from torch.distributed.rendezvous import rendezvous

from sampler.engine.api.served import Announced, GroupPlace
from sampler.engine.loading.finite import all_finite
from shared.errors import DataError

LIMIT = timedelta(seconds=60)


class GroupError(Exception):
    """The peers were absent, stalled or ended; names the attempted operation."""


class UpdateGroups:
    """Groups by name. Its methods wait for other processes: call them in a worker thread.

    `owner`: in messages. `backends`: those that can be joined. Tensors arrive on `device`.
    """

    def __init__(self, owner: str, backends: Sequence[str] = ("gloo",), device: str = "cpu") -> None:
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._owner, self._backends, self._device = owner, backends, device

    def join(self, place: GroupPlace) -> None:
        """Raises GroupError."""
        name, backend = place.name, place.backend
        if backend not in self._backends:
            raise GroupError(f"backend {backend!r}: {self._owner} has {' and '.join(self._backends)} alone")
        if name in self._groups:
            raise GroupError(f"the group {name!r} exists already")
        try:
            store, _, _ = next(rendezvous(f"tcp://{place.address}:{place.port}", place.rank, place.size, timeout=LIMIT))
            store.set_timeout(LIMIT)
            group, _ = distributed_c10d._new_process_group_helper(
                place.size,
                place.rank,
                [],
                distributed_c10d.Backend(backend),
                PrefixStore(name, store),
                group_name=distributed_c10d.GroupName(name),
                timeout=LIMIT,
            )
        except (RuntimeError, ValueError, OSError) as error:  # torch's own errors are RuntimeErrors
            raise GroupError(str(error)[:300]) from error
        distributed_c10d._world.pg_group_ranks[group] = {number: number for number in range(place.size)}
        self._groups[name] = group

    def leave(self, name: str) -> bool:
        """False if the group does not exist."""
        group = self._groups.pop(name, None)
        if group is not None:
            dist.destroy_process_group(group)
        return group is not None

    def receive(self, name: str, what: Announced) -> dict[str, Tensor]:
        """The tensors as sent. Raises GroupError."""
        if name not in self._groups:
            raise GroupError(
                f"Group {name} not in {list(self._groups)}. Please call `init_weights_update_group` first."
            )
        try:
            return self._receive(self._groups[name], what)
        except RuntimeError as error:
            raise GroupError(str(error)[:300]) from error

    def _receive(self, group: dist.ProcessGroup, what: Announced) -> dict[str, Tensor]:
        dtypes = [getattr(torch, dtype) for dtype in what.dtypes]
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in zip(what.shapes, dtypes, strict=True)]
        data = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        if what.flattened:
            dist.broadcast(data, src=0, group=group)
        tensors = {}
        for name, dtype, shape, part in zip(what.names, dtypes, what.shapes, torch.split(data, sizes), strict=True):
            tensors[name] = part.view(dtype).reshape(shape)
            if not what.flattened:
                dist.broadcast(tensors[name], src=0, group=group)
        return tensors


def check_fit(tensors: dict[str, Tensor], live: dict[str, Tensor]) -> None:
    """Raises DataError if a tensor is not the model's, has another shape, or is not finite."""
    for name, tensor in tensors.items():
        if name not in live:
            raise DataError(f"this model has no tensor {name}")
        if tensor.shape != live[name].shape:
            raise DataError(f"tensor {name} has shape {tuple(tensor.shape)}; expected {tuple(live[name].shape)}")
        if not all_finite(tensor):
            raise DataError(f"tensor {name} holds NaN or infinite values")
