"""The scheduler's core in process, over a real tiny model: order, chunks, rows, retraction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sampler.engine.api.generation import SamplingParams
from sampler.engine.local.batching import MAX_PREFILL_TOKENS, Batching
from sampler.engine.local.runner import EngineSize, load
from sampler.engine.local.running import RunningSequence
from tests.sampler.engine.local.harness import ROUNDING, VOCABULARY, Reference

SLOTS = 4


@pytest.fixture
def batching(model_paths: tuple[Path, Path]) -> Iterator[Batching]:
    loaded = load(model_paths[0], EngineSize(SLOTS, num_threads=1))
    with torch.inference_mode():
        yield Batching(loaded.forward, loaded.kv, lambda ids, skip: str(ids), "v0")


def generation(prompt: list[int], limit: int) -> RunningSequence:
    return RunningSequence("g", prompt, SamplingParams(), limit, frozenset())


def run(batching: Batching, limit: int = 500) -> int:
    steps = 0
    while batching.can_step:
        batching.step()
        steps += 1
        assert steps < limit, "the batch does not end"
        for row, g in enumerate(batching.running):
            assert g.slot == row
    return steps


def assert_exact(reference: Reference, g: RunningSequence) -> None:
    expected = reference.log_probs(0, g.prompt, g.output)
    assert max(abs(a - b) for a, b in zip(g.logprobs, expected, strict=True)) <= ROUNDING


def test_sequences_that_end_at_different_steps_keep_exact_log_probs(batching: Batching, reference: Reference) -> None:
    asked = [generation([(7 * i + j) % VOCABULARY for j in range(3 + 11 * i)], 2 + (5 * i) % 17) for i in range(12)]
    batching.waiting.extend(asked)
    run(batching)
    for g in asked:
        assert len(g.output) == g.limit
        assert_exact(reference, g)


def test_a_batch_continues_beyond_its_mask(
    batching: Batching, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sampler.engine.local.batch.MASK_STEPS", 7)
    asked = [generation([1, 2], 60), generation([3, 4, 5, 6], 60)]
    batching.waiting.extend(asked)
    run(batching)
    for g in asked:
        assert_exact(reference, g)


def test_requests_are_admitted_in_the_order_of_their_arrival(batching: Batching) -> None:
    asked = [generation([i, i + 1, i + 2], 4) for i in range(3 * SLOTS)]
    batching.waiting.extend(asked)
    run(batching)
    ends = [g.finished_at for g in asked]
    assert ends == sorted(ends)


def test_a_long_queue_of_prompts_is_prefilled_in_bounded_chunks(batching: Batching, reference: Reference) -> None:
    asked = [generation([(13 * i + j) % VOCABULARY for j in range(230)], 3) for i in range(SLOTS)]
    batching.waiting.extend(asked)
    batching.step()
    computed = sum(g.computed for g in asked)
    assert computed <= MAX_PREFILL_TOKENS
    assert len(batching.running) == computed // 230
    run(batching)
    for g in asked:
        assert_exact(reference, g)


def test_retracted_sequences_are_readmitted_first_and_continue_exactly(
    batching: Batching, reference: Reference
) -> None:
    asked = [generation([i, 50 + i, 90 + i], 20) for i in range(SLOTS + 2)]
    batching.waiting.extend(asked)
    for _ in range(6):
        batching.step()
    running = list(batching.running)
    batching.retract()
    assert not batching.holding
    assert list(batching.waiting)[: len(running)] == running
    batching.kv.flush()
    run(batching)
    for g in asked:
        assert len(g.output) == 20
        assert g.retractions == (1 if g in running else 0)
        assert_exact(reference, g)


def test_a_finished_sequence_is_reused_by_its_next_turn(batching: Batching, reference: Reference) -> None:
    first = generation(list(range(30)), 10)
    batching.waiting.append(first)
    run(batching)
    second = generation([*first.prompt, *first.output, 3, 4], 5)
    batching.waiting.append(second)
    run(batching)
    assert second.cached_tokens == 39  # the last sampled token's KV was never needed
    assert_exact(reference, second)
