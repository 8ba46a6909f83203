"""The slot cache: which prefix is reused, what is evicted, and that moving slots moves everything."""

from __future__ import annotations

import pytest
import torch

from sampler.engine.api.generation import SamplingParams
from sampler.engine.local.kv import KvSlots
from sampler.engine.local.running import RunningSequence


def generation(prompt: list[int]) -> RunningSequence:
    return RunningSequence("g", prompt, SamplingParams(), 100, frozenset())


def cached(kv: KvSlots, tokens: list[int]) -> int:
    """Run `tokens` through the cache as a finished prefill: its slot. Each position's KV holds its token id."""
    g = generation(tokens)
    assert kv.take(g)
    slot = g.slot
    write(kv, slot, tokens)
    g.computed = len(tokens)
    kv.extend(g)
    kv.release(g)
    return slot


def write(kv: KvSlots, slot: int, tokens: list[int]) -> None:
    kv.data[slot, ..., : len(tokens), :] = torch.tensor(tokens, dtype=torch.float32)[:, None]


def held(kv: KvSlots, slot: int, size: int) -> list[float]:
    """The tokens recorded in the KV of the first `size` positions; equal in every layer and head."""
    block = kv.data[slot, ..., :size, :]
    assert bool((block == block[0, 0, 0, :, :1]).all())
    return block[0, 0, 0, :, 0].tolist()


@pytest.fixture
def kv() -> KvSlots:
    return KvSlots(num_slots=3, layers=2, kv_heads=2, max_len=64, head_dim=4)


def test_a_longer_prompt_continues_its_own_slot_in_place(kv: KvSlots) -> None:
    slot = cached(kv, list(range(20)))
    g = generation([*range(20), 50, 51])
    assert kv.take(g)
    assert (g.slot, g.computed) == (slot, 20)


def test_the_same_prompt_leaves_one_token_to_compute(kv: KvSlots) -> None:
    cached(kv, list(range(20)))
    g = generation(list(range(20)))
    assert kv.take(g)
    assert g.computed == 19


def test_a_short_common_prefix_is_copied_and_the_cached_sequence_survives(kv: KvSlots) -> None:
    episode = cached(kv, list(range(40)))
    g = generation([*range(10), 60, 61])
    assert kv.take(g)
    assert g.slot != episode
    assert g.computed == 10
    assert held(kv, g.slot, 10) == list(range(10))
    again = generation([*range(40), 62])
    assert kv.take(again)
    assert (again.slot, again.computed) == (episode, 40)


def test_the_prefix_of_a_busy_sequence_is_copied(kv: KvSlots) -> None:
    busy = generation(list(range(30)))
    assert kv.take(busy)
    write(kv, busy.slot, list(range(30)))
    busy.computed = 12  # its prefill is on the way
    kv.extend(busy)
    g = generation([*range(30), 55])
    assert kv.take(g)
    assert g.slot != busy.slot
    assert g.computed == 12
    assert held(kv, g.slot, 12) == list(range(12))


def test_the_least_recently_used_slot_is_evicted(kv: KvSlots) -> None:
    slots = [cached(kv, [10 * i] * 8) for i in (1, 2, 3)]
    again = generation([10] * 8 + [1])
    assert kv.take(again)  # the first is used again
    kv.release(again)
    g = generation([60] * 8)
    assert kv.take(g)
    assert (g.slot, g.computed) == (slots[1], 0)


def test_no_slot_is_given_when_all_are_busy(kv: KvSlots) -> None:
    taken = [generation([i]) for i in range(3)]
    assert all(kv.take(g) for g in taken)
    assert sorted(g.slot for g in taken) == [0, 1, 2]
    assert not kv.take(generation([9]))


def test_swapping_moves_contents_owners_and_prefixes(kv: KvSlots) -> None:
    first = generation(list(range(20)))
    assert kv.take(first)
    write(kv, first.slot, list(range(20)))
    first.computed = 20
    kv.extend(first)
    other = cached(kv, list(range(40, 50)))
    was = first.slot
    kv.swap(was, other)
    assert first.slot == other
    assert held(kv, other, 20) == list(range(20))
    assert held(kv, was, 10) == list(range(40, 50))
    g = generation([*range(40, 50), 1])
    assert kv.take(g)
    assert (g.slot, g.computed) == (was, 10)


def test_a_flush_prevents_all_reuse_even_from_busy_slots(kv: KvSlots) -> None:
    busy = generation(list(range(30)))
    assert kv.take(busy)
    busy.computed = 30
    kv.extend(busy)
    cached(kv, [7] * 10)
    kv.flush()
    for prompt in ([*range(30), 1], [7] * 11):
        g = generation(prompt)
        assert kv.take(g)
        assert g.computed == 0
        kv.release(g)
    kv.extend(busy)
    kv.release(busy)  # its KV is of the old weights
    g = generation([*range(30), 1])
    assert kv.take(g)
    assert g.computed == 0
