"""Receives weights in torch.distributed groups that the engine has joined.

As in SGLang 0.5.23: rank 0 sends, this engine is rank `rank_offset`; a request's tensors arrive as one tensor of bytes
("flattened_bucket"), or one by one. Differences on purpose: only gloo; a stalled peer is waited for one minute, not thirty; and
tensors that do not fit the model (names, shapes, non-finite values) are refused after receipt, with nothing changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, distributed_c10d
from torch.distributed.rendezvous import rendezvous

from shared.errors import DataError

LIMIT = timedelta(seconds=60)
BACKEND = "gloo"


class GroupError(Exception):
    """The peers were absent, stalled or ended; names the attempted operation."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The tensors that a request announces."""

    names: list[str]
    dtypes: list[torch.dtype]
    shapes: list[list[int]]
    flattened: bool


def announced(names: list[Any], dtypes: list[Any], shapes: list[Any], load_format: str | None) -> Announced:
    """Raises DataError if they do not describe tensors."""
    if load_format not in (None, "flattened_bucket"):
        raise DataError(f"Unknown load_format={load_format}; expected flattened_bucket or none")
    torch_dtypes = [getattr(torch, str(dtype), None) for dtype in dtypes]
    if (
        not names
        or not len(names) == len(torch_dtypes) == len(shapes)
        or not all(isinstance(d, torch.dtype) for d in torch_dtypes)
    ):
        raise DataError(
            f"{len(names)} names, {len(shapes)} shapes and the types {sorted(set(map(str, dtypes)))} are no tensors"
        )
    if not all(isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) for shape in shapes):
        raise DataError("a shape is no list of whole numbers from 0 on")
    return Announced(
        [str(name) for name in names], [d for d in torch_dtypes if d is not None], shapes, load_format is not None
    )


class UpdateGroups:
    """Groups by name. Its methods wait for other processes: call them in a worker thread."""

    def __init__(self) -> None:
        self._groups: dict[str, dist.ProcessGroup] = {}

    def join(self, address: str, port: int, rank: int, size: int, name: str, backend: str) -> None:
        """Raises GroupError."""
        if backend != BACKEND:
            raise GroupError(f"backend {backend!r}: the local engine has {BACKEND} alone")
        if name in self._groups:
            raise GroupError(f"the group {name!r} exists already")
        try:
            store, _, _ = next(rendezvous(f"tcp://{address}:{port}", rank, size, timeout=LIMIT))
            store.set_timeout(LIMIT)
            group, _ = distributed_c10d._new_process_group_helper(
                size,
                rank,
                [],
                distributed_c10d.Backend(backend),
                PrefixStore(name, store),
                group_name=distributed_c10d.GroupName(name),
                timeout=LIMIT,
            )
        except (RuntimeError, ValueError, OSError) as error:  # torch's own errors are RuntimeErrors
            raise GroupError(str(error)[:300]) from error
        distributed_c10d._world.pg_group_ranks[group] = {number: number for number in range(size)}
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
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in zip(what.shapes, what.dtypes, strict=True)]
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        if what.flattened:
            dist.broadcast(data, src=0, group=group)
        tensors = {}
        for name, dtype, shape, part in zip(
            what.names, what.dtypes, what.shapes, torch.split(data, sizes), strict=True
        ):
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
        if not torch.isfinite(tensor).all():
            raise DataError(f"tensor {name} holds NaN or infinite values")
