"""The memory that the engine occupies, and its release: the KV cache and the weights.

Released weights keep their tensors, views and names; only their storages are freed. So what shares memory with a parameter
(the fused matrices) still does after `resume`, and the next update fills all of them. Only the scheduler's thread calls this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import nn

from sampler.engine.api.updates import KV_CACHE, WEIGHTS
from sampler.engine.local.kv import KvSlots


class Occupation:
    """`released`: tags whose memory is free. `stale`: the weights have no values, since their memory was free."""

    def __init__(self, model: nn.Module, kv: KvSlots) -> None:
        self.released: frozenset[str] = frozenset()
        self.stale = False
        self._kv = kv
        self._storages = _storages(model.parameters())
        self._sizes = [storage.nbytes() for storage in self._storages]

    def release(self, tags: Sequence[str]) -> None:
        """Free the memory of `tags`; those that are free already stay so."""
        if KV_CACHE in tags:
            self._kv.free()
        if WEIGHTS in tags and not self.stale:
            for storage in self._storages:
                storage.resize_(0)
            self.stale = True
        self.released |= frozenset(tags)
        _return_to_system()

    def resume(self, tags: Sequence[str]) -> None:
        """Allocate again what is free of `tags`."""
        due = self.released & frozenset(tags)
        if KV_CACHE in due:
            self._kv.allocate()
        if WEIGHTS in due:
            for storage, size in zip(self._storages, self._sizes, strict=True):
                storage.resize_(size)
        self.released -= due

    def filled(self) -> None:
        """All weights have values again."""
        self.stale = False


def own_storages(model: nn.Module) -> None:
    """Copy parameters whose memory cannot be freed one by one, such as slices of a mapped file."""
    for parameter in model.parameters():
        if not parameter.untyped_storage().resizable():
            parameter.data = parameter.data.clone()


def _storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    by_address = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors if tensor.numel()}
    return [storage for storage in by_address.values() if storage.resizable()]


def _return_to_system() -> None:
    """glibc keeps freed blocks below 32 MiB for itself otherwise."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> ctypes._FuncPointer | None:
    try:
        trim: ctypes._FuncPointer = ctypes.CDLL(None).malloc_trim
    except AttributeError:  # another C library
        return None
    return trim
