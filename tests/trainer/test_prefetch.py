"""Reading ahead changes when the work is done, and nothing else: not what a step takes, not its rows, not one document."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from shared.documents.states import DataStatus
from tests.trainer.streams import add_groups, publish, start
from trainer.data.stream import Batch, RecordStream
from trainer.process.parallel import Parallel
from trainer.process.store_bridge import StoreBridge
from trainer.trees.packing import Row

PATIENCE_S = 60.0


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "nothing was read ahead"
        time.sleep(0.01)


@contextmanager
def ahead(bridge: StoreBridge, parallel: Parallel, **fields: object) -> Iterator[RecordStream]:
    with start(bridge, parallel, **fields) as stream:
        yield stream


def take(stream: RecordStream, step: int) -> Batch:
    batch = stream.next_batch(step)
    assert batch is not None
    stream.commit(step)
    return batch


def tasks(batch: Batch) -> list[str]:
    return sorted({rid.split(":")[3] for rid in batch.record_ids})


def same_rows(one: Row, other: Row) -> bool:
    """Of text alone."""
    names = [field.name for field in dataclasses.fields(Row) if field.name not in ("images", "experts")]
    assert one.images is one.experts is other.experts is None
    assert other.images is None
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


@pytest.mark.parametrize("normalization", ["none", "source"])
def test_batches_are_those_of_a_stream_that_reads_when_it_is_asked(
    bridge: StoreBridge, alone: Parallel, normalization: str
) -> None:
    publish(bridge, range(3))
    add_groups(bridge, range(6))
    options = {"advantage_normalization": normalization, "drop_zero_advantage": False, "updates_per_step": 2}
    plain = start(bridge, alone, **options)
    expected = [take(plain, step) for step in (1, 2, 3)]
    bridge(bridge.store.data.rewind("main", 0, max_trained_count=1))
    with ahead(bridge, alone, **options) as stream:
        for step, batch in enumerate(expected, start=1):
            if step > 1:
                until(lambda: len(stream._buffer.groups) == 2)
            found = take(stream, step)
            assert found.record_ids == batch.record_ids
            for mine, theirs in zip(found.minibatches, batch.minibatches, strict=True):
                assert mine.denominators.tokens_T.tolist() == theirs.denominators.tokens_T.tolist()
                assert len(mine.rows) == len(theirs.rows) == 1
                assert all(map(same_rows, mine.rows, theirs.rows))
            assert batch.metrics["data/prefetched_fraction"] == 0.0
            assert step == 1 or found.metrics["data/prefetched_fraction"] == 1.0


def test_what_is_read_ahead_is_neither_borrowed_nor_marked(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(2))
    add_groups(bridge, range(4))
    with ahead(bridge, alone) as stream:
        assert stream.next_batch(1) is not None
        until(lambda: stream._buffer.packed)
        data = bridge(bridge.store.data.find({}))
        assert [d.claim and d.claim.step for d in data] == [1] * 4 + [None] * 4
        assert all(d.trained_steps == [] for d in data)


def test_a_step_takes_what_is_oldest_when_it_begins_and_what_was_read_in_vain_keeps_no_age(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(3))
    add_groups(bridge, range(3, 5))
    with ahead(bridge, alone, groups_per_step=1) as stream:
        assert tasks(take(stream, 1)) == ["t3"]
        until(lambda: stream._buffer.packed)
        add_groups(bridge, range(1))  # older than t4, which is in the buffer
        second = take(stream, 2)
        assert (tasks(second), second.metrics["data/staleness_max"]) == (["t0"], 1.0)
        third = take(stream, 3)
        assert (tasks(third), third.metrics["data/staleness_max"]) == (["t4"], 2.0)
        (row,) = third.minibatches[0].rows
        assert set(row.staleness_E.tolist()) == {2.0}


def test_what_became_too_old_in_the_prefetch_buffer_is_set_aside(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(3))
    add_groups(bridge, range(3, 5))
    with ahead(bridge, alone, groups_per_step=1, max_staleness=1, stale_data="drop") as stream:
        take(stream, 1)
        until(lambda: stream._buffer.packed)
        add_groups(bridge, range(1), version=1)
        assert tasks(take(stream, 2)) == ["t0"]
        add_groups(bridge, range(8, 9), version=2)
        assert tasks(take(stream, 3)) == ["t8"]
    stale = bridge(bridge.store.data.find({"status": "stale"}))
    assert {d.task for d in stale} == {"main:train:0:t4"}


def test_synchronous_training_goes_on_when_the_next_data_needs_the_step_itself(
    bridge: StoreBridge, alone: Parallel
) -> None:
    with ahead(bridge, alone, max_staleness=0) as stream:
        for step in (1, 2, 3):
            publish(bridge, range(step - 1, step))
            add_groups(bridge, range(2 * step, 2 * step + 2), version=step - 1)
            assert take(stream, step).metrics["data/staleness_max"] == 0.0


def test_groups_are_read_while_the_stream_waits_for_the_last_one(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(1))
    with ahead(bridge, alone) as stream:

        def add_the_last() -> None:
            until(lambda: stream._buffer.groups)
            add_groups(bridge, range(1, 2))

        later = threading.Thread(target=add_the_last)
        later.start()
        batch = take(stream, 1)
        later.join()
    assert batch.metrics["data/prefetched_fraction"] >= 0.5


def test_tokens_that_are_not_those_of_settlement_are_dropped_also_when_read_ahead(
    bridge: StoreBridge, alone: Parallel
) -> None:
    publish(bridge, range(2))
    add_groups(bridge, range(5))
    dispatches = bridge.store.database["dispatched_sampling_tasks"]
    bridge(dispatches.update_one({"_id": "main:train:0:t2:0:1:0"}, {"$set": {"weight_versions": [[1, 2]]}}))
    with ahead(bridge, alone) as stream:
        take(stream, 1)
        assert tasks(take(stream, 2)) == ["t3", "t4"]
    for data in bridge(bridge.store.data.find({"task": "main:train:0:t2"})):
        assert data.status is DataStatus.DROPPED
        assert "A dispatch was changed" in (data.reason or "")


def test_the_thread_ends_with_the_stream(bridge: StoreBridge, alone: Parallel) -> None:
    publish(bridge, range(1))
    add_groups(bridge, range(4))
    with ahead(bridge, alone) as stream:
        take(stream, 1)
        assert [t.name for t in threading.enumerate() if t.name.startswith("prefetch")]
    assert not [t.name for t in threading.enumerate() if t.name.startswith("prefetch")]
