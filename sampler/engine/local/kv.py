"""The KV cache: a fixed number of slots of `max_len` tokens, and their reusable prefixes.

Slots 0..n-1 always hold the n decoding sequences, so that a decode step reads the cache as one slice without gathering; `swap`
maintains this. The other slots hold sequences in prefill, and finished ones whose tokens and KV stay cached until the least
recently used one is needed.

Layout: `data` [slots, layers, 2 (key, value), kv_heads, max_len, head_dim], float32. A slot is one block, and the
row of (slot, layer, key|value, head, position) in `flat` [-1, head_dim] has stride 1 over positions.

Memory is taken by the page, when a token is first written to it. The pages must be small: a token's key and value lie in
2 * layers * kv_heads places, which at 8,192 tokens of context are 2 MB apart, so that with huge pages a sequence of one token
takes as much as one of the whole context.
"""

from __future__ import annotations

import contextlib
import mmap
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from sampler.engine.local.running import RunningSequence

KEEP_TAIL = 0.75  # a cached sequence is overwritten in place only if the new prompt shares at least this part of it


class KvSlots:
    def __init__(self, num_slots: int, layers: int, kv_heads: int, max_len: int, head_dim: int) -> None:
        self.num_slots, self.layers, self.kv_heads, self.max_len = num_slots, layers, kv_heads, max_len
        self._shape = (num_slots, layers, 2, kv_heads, max_len, head_dim)
        self.allocate()
        self.experts: torch.Tensor | None = (
            None  # [slots, max_len, layers, experts of a token]; None: the model has none
        )
        self.tokens: NDArray[np.int32] = np.zeros((num_slots, max_len), dtype=np.int32)
        self.length: NDArray[np.int64] = np.zeros(num_slots, dtype=np.int64)  # reusable tokens
        self.owner: list[RunningSequence | None] = [None] * num_slots
        self._used: list[int] = [0] * num_slots
        self._clock = 0
        heads = torch.arange(2 * kv_heads)
        self._row_of_head = (torch.arange(layers)[:, None] * 2 * kv_heads + heads) * max_len  # [layers, 2 * kv_heads]
        self._rows_per_slot = layers * 2 * kv_heads * max_len

    def record_experts(self, top_k: int, num_experts: int) -> None:
        """Every later forward also writes which experts computed each token, into the places of its keys and values."""
        kind = torch.uint8 if num_experts <= 256 else torch.int16
        self.experts = torch.zeros((self.num_slots, self.max_len, self.layers, top_k), dtype=kind)

    def experts_of(self, slot: int, start: int, stop: int) -> bytes:
        """int32 [tokens, layers, experts of a token] of these positions."""
        assert self.experts is not None, "only where they are recorded can they be asked for"
        return self.experts[slot, start:stop].to(torch.int32).numpy().tobytes()

    def allocate(self) -> None:
        # Zeros, since a masked position still contributes 0 * value and an uninitialized value may be NaN.
        self.data = _zeros_in_small_pages(self._shape)
        self.flat = self.data.view(-1, self._shape[-1])

    def free(self) -> None:
        """Give up the memory until `allocate`; nothing of the cache is kept. No sequence may own a slot."""
        self.flush()
        self.data = torch.empty(0)
        self.flat = self.data

    def write_index(self, slot_N: torch.Tensor, position_N: torch.Tensor) -> torch.Tensor:
        """Rows of `flat` to which N tokens write: [layers, N * 2 * kv_heads], token-major, keys before values."""
        base_N = slot_N * self._rows_per_slot + position_N
        return (base_N[None, :, None] + self._row_of_head[:, None, :]).view(self.layers, -1)

    def common_prefix(self, compared: NDArray[np.int32]) -> NDArray[np.int64]:
        """Per slot, the number of leading tokens that it can share with a sequence."""
        size = len(compared)
        differs = self.tokens[:, :size] != compared
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), size)
        return np.minimum(first, self.length)

    def take(self, generation: RunningSequence) -> bool:
        """Assign an idle slot to `generation`, with the longest prefix of its context that any slot holds. False: all are busy.

        At least one token remains to be computed, for the logits of the last one; more where the prompt's log-probs are wanted.
        """
        idle = [slot for slot, owner in enumerate(self.owner) if owner is None]
        if not idle:
            return False
        shared = np.minimum(self.common_prefix(generation.compared), generation.shareable)
        oldest = min(idle, key=lambda slot: self._used[slot])
        best_idle = max(idle, key=lambda slot: int(shared[slot]))
        source = best_idle if shared[best_idle] == shared.max() else int(shared.argmax())
        reused = int(shared[source])
        in_place = source == best_idle and reused >= KEEP_TAIL * self.length[source]
        target = source if in_place else oldest
        if target != source and reused:
            self.data[target, ..., :reused, :] = self.data[source, ..., :reused, :]
            if self.experts is not None:
                self.experts[target, :reused] = self.experts[source, :reused]
        self.tokens[target, : len(generation.compared)] = generation.compared
        self.length[target] = reused
        self.owner[target] = generation
        generation.slot, generation.computed = target, reused
        self._touch(source)
        return True

    def extend(self, generation: RunningSequence) -> None:
        """Share the tokens that prefill has computed so far."""
        if not generation.kv_stale:
            self.length[generation.slot] = generation.computed

    def release(self, generation: RunningSequence) -> None:
        """The sequence ended: its slot becomes a cache of its tokens."""
        slot, size = generation.slot, generation.kv_length
        self.tokens[slot, :size] = generation.compared_tokens()[:size]
        self.length[slot] = 0 if generation.kv_stale else size
        self.owner[slot] = None
        self._touch(slot)
        generation.slot = -1

    def swap(self, a: int, b: int) -> None:
        """Exchange two slots, contents and owners."""
        if a == b:
            return
        size = max(self._filled(a), self._filled(b))
        copy = self.data[a, ..., :size, :].clone()
        self.data[a, ..., :size, :] = self.data[b, ..., :size, :]
        self.data[b, ..., :size, :] = copy
        if self.experts is not None:
            self.experts[[a, b], :size] = self.experts[[b, a], :size]
        self.tokens[[a, b]] = self.tokens[[b, a]]
        self.length[[a, b]] = self.length[[b, a]]
        self._used[a], self._used[b] = self._used[b], self._used[a]
        self.owner[a], self.owner[b] = self.owner[b], self.owner[a]
        for slot in (a, b):
            owner = self.owner[slot]
            if owner is not None:
                owner.slot = slot

    def flush(self) -> None:
        """Prevent reuse of everything cached now; running sequences keep their own (stale) cache."""
        self.length[:] = 0
        for owner in self.owner:
            if owner is not None:
                owner.kv_stale = True

    def busy_tokens(self) -> int:
        return sum(owner.kv_length for owner in self.owner if owner is not None)

    def _filled(self, slot: int) -> int:
        owner = self.owner[slot]
        return int(self.length[slot]) if owner is None else owner.kv_length

    def _touch(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock


def _zeros_in_small_pages(shape: tuple[int, ...]) -> torch.Tensor:
    """Float32. numpy's and glibc's own zeros may be of huge pages, as the machine's settings and the environment have it."""
    memory = mmap.mmap(-1, prod(shape) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)
