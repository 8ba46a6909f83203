"""The curriculum: the tasks that the next epoch skips depend only on the documents, not on the order of events."""

from typing import Any

import pytest

from shared.documents import Task, TaskPayload, task_id
from shared.documents.states import TaskStatus
from shared.store import Store
from shared.tasks.files import Entry, ImportTarget, import_entries
from shared.tasks.lines import TaskLine
from shared.tasks.task_images import TaskImages
from tests.conftest import ROOT
from tests.shared.builders import claim, make_task

BAND: dict[str, Any] = {"min_pass_rate": 0.25, "max_pass_rate": 0.75}


def in_epoch(epoch: int, seq: int, **band: Any) -> Task:
    payload = TaskPayload(query="2+2?", answer="4", **(band or BAND))
    return make_task(seq, epoch=epoch, tid="t", num_generations=4).model_copy(update={"payload": payload})


async def play(store: Store, scores: list[float | None]) -> Task:
    """The whole group of the first open task. None: the infrastructure failed it."""
    for score in scores:
        held = await claim(store)
        if score is None:
            await store.tasks.retry_slot(held, "engine down", delay_s=0, max_failures=1)
        else:
            await store.tasks.finish_slot(held, score)
    task = await store.tasks.get(held.task.id)
    assert task is not None
    return task


async def status(store: Store, epoch: int) -> TaskStatus:
    task = await store.tasks.get(task_id("main", "train", epoch, "t"))
    assert task is not None
    return task.status


@pytest.mark.parametrize(
    ("scores", "skipped"),
    [
        ([0, 0, 0, 0], True),
        ([1, 0, 0, 0], False),  # the bounds belong to the band
        ([1, 1, 1, 0], False),
        ([1, 1, 1, 1], True),
        ([1, 1, None, 0.5], False),  # 2 of 3: half a score is no pass, a failure no episode
        ([1, 1, None, None], True),
        ([None, None, None, None], False),
    ],
)
async def test_a_task_is_skipped_when_the_pass_rate_of_the_epoch_before_is_outside_its_band(
    store: Store, scores: list[float | None], skipped: bool
) -> None:
    await store.tasks.insert_new([in_epoch(0, 0), in_epoch(1, 1), in_epoch(2, 2)])
    played = await play(store, scores)
    assert await store.tasks.skip_next_epoch(played) is skipped
    assert not await store.tasks.skip_next_epoch(played)  # again, as a second settler does: nothing changes
    assert await status(store, 1) is (TaskStatus.SKIPPED if skipped else TaskStatus.CREATED)
    assert await status(store, 2) is TaskStatus.CREATED


@pytest.mark.parametrize("skips", [True, False])
async def test_the_end_of_a_settlement_skips_the_next_epoch(store: Store, skips: bool) -> None:
    await store.tasks.insert_new([in_epoch(0, 0), in_epoch(1, 1)])
    played = await play(store, [1, 1, 1, 1])
    await store.tasks.finish_settlement(played, "ready", abandoned=False, skips=skips)
    assert await status(store, 0) is TaskStatus.SETTLED
    assert await status(store, 1) is (TaskStatus.SKIPPED if skips else TaskStatus.CREATED)


async def test_a_skipped_task_is_never_claimed_and_returns_in_the_epoch_after(store: Store) -> None:
    await store.tasks.insert_new([in_epoch(0, 0), in_epoch(1, 1), in_epoch(2, 2)])
    await store.tasks.skip_next_epoch(await play(store, [1, 1, 1, 1]))
    assert (await claim(store)).task.epoch == 2
    skipped = await store.tasks.get(task_id("main", "train", 1, "t"))
    assert skipped is not None
    assert skipped.outcome == "skipped: 4 of 4 episodes passed in epoch 0"


async def test_a_task_that_was_opened_already_or_has_no_band_is_played(store: Store) -> None:
    await store.tasks.insert_new([in_epoch(0, 0), in_epoch(1, 1)])
    played = await play(store, [0, 0, 0, 0])
    assert (await claim(store)).task.epoch == 1
    assert not await store.tasks.skip_next_epoch(played)
    assert await status(store, 1) is TaskStatus.RUNNING
    await store.database["tasks"].delete_many({})
    await store.tasks.insert_new([in_epoch(0, 0), in_epoch(1, 1, max_pass_rate=None)])
    assert not await store.tasks.skip_next_epoch(await play(store, [0, 0, 0, 0]))


async def test_an_epoch_imported_after_the_previous_one_was_played_is_skipped_too(store: Store) -> None:
    line = TaskLine(1, 1, "t", "test", in_epoch(0, 0).payload)
    await store.tasks.insert_new([in_epoch(0, 0)])
    await play(store, [1, 1, 1, 1])
    for inserted in (1, 0):
        entry = Entry(ROOT / "t.jsonl", line, ImportTarget(num_generations=4), 1)
        assert await import_entries(store, [entry], TaskImages()) == inserted
        assert await status(store, 1) is TaskStatus.SKIPPED


async def test_a_further_group_of_a_fork_is_no_later_epoch_of_it(store: Store) -> None:
    """It has the payload of its origin's task, with the band."""
    forks = [
        in_epoch(group, group).model_copy(update={"split": "fork", "id": f"main:fork:{group}:t"}) for group in (0, 1)
    ]
    await store.tasks.insert_new(forks)
    for _ in range(4):
        await store.tasks.finish_slot(await claim(store, split="fork"), 1.0)
    played = await store.tasks.get("main:fork:0:t")
    assert played is not None
    assert not await store.tasks.skip_next_epoch(played)
    further = await store.tasks.get("main:fork:1:t")
    assert further is not None
    assert further.status is TaskStatus.CREATED
