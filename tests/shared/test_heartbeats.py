"""A process writes its heartbeat at each change, else at an interval well within the silence after which it counts as dead."""

import asyncio
import time
from typing import Any

import pytest

from shared.documents.run import HEARTBEAT_S, Worker
from shared.processes.waits import WAITED, Activity, Wait, untimed, waiting
from shared.store import Store, heartbeats
from shared.store.heartbeats import UNCHANGED_S, WorkerHeartbeats
from shared.store.liveness import LEAST_SILENCE_S


def worker(**values: Any) -> Worker:
    return Worker(id="w", kind="sampler", host="h", pid=1, **values)


def waits(clock: str, seconds: float, what: str = "a task") -> Worker:
    return worker(doing=f"waits {clock} for {what}: none is free; until one is", stats={"episodes": 3, WAITED: seconds})


async def written(store: Store) -> int:
    """Number of writes, by the server's counters."""
    return int((await store.client.admin.command("serverStatus"))["opcounters"]["update"])


async def test_the_seconds_of_a_wait_alone_are_not_written(store: Store) -> None:
    beats, before = WorkerHeartbeats(store.workers), await written(store)
    for second in range(10):
        await beats.write(waits(f"0:0{second}", second))
    assert await written(store) - before == 1
    last = store.workers.last
    assert last is not None
    assert last.stats[WAITED] == 9, "the metrics page has them"


@pytest.mark.parametrize(
    "other",
    [
        waits("0:10", 10, "an engine"),
        waits("0:10", 10).model_copy(update={"alarms": ["x"]}),
        waits("0:10", 10).model_copy(update={"stats": {"episodes": 4, WAITED: 10}}),
        worker(doing="sampling", stats={"episodes": 3, WAITED: 0.0}),
    ],
    ids=["another wait", "an alarm", "a count", "work"],
)
async def test_a_change_is_written_at_once(store: Store, other: Worker) -> None:
    beats = WorkerHeartbeats(store.workers)
    await beats.write(waits("0:09", 9))
    await beats.write(other)
    (stored,) = await store.workers.live()
    assert (stored.doing, stored.alarms, stored.stats) == (other.doing, other.alarms, other.stats)


async def test_without_a_change_it_is_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "UNCHANGED_S", 0.05)
    beats, before = WorkerHeartbeats(store.workers), await written(store)
    await beats.write(waits("0:01", 1))
    await asyncio.sleep(0.06)  # longer than the interval
    await beats.write(waits("0:02", 2))
    assert await written(store) - before == 2


async def test_a_process_that_works_is_written_every_time(store: Store) -> None:
    beats, before = WorkerHeartbeats(store.workers), await written(store)
    for _ in range(3):
        await beats.write(worker(doing="step 3", stats={WAITED: 0.0}))
    assert await written(store) - before == 3


def test_several_heartbeats_fit_into_the_silence_after_which_a_process_counts_as_dead() -> None:
    assert 3 * max(UNCHANGED_S, HEARTBEAT_S) <= LEAST_SILENCE_S


def test_a_text_without_the_seconds_of_its_waits() -> None:
    activity = Activity(Wait("a task", "0:10 is in it", "one is there"))
    with activity.of_process(), waiting(Wait("room", "b", "c"), inside=True, since=time.monotonic() - 3700):
        text = str(activity)
    assert "waits 1:01:40 for room" in text
    expected = (
        "waits for a task: 0:10 is in it; until one is there; 1 waits inside, the longest waits for room: b; until c"
    )
    assert untimed(text) == expected
