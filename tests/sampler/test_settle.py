"""Settlement: advantages, training data, and that doing it twice or dying in between changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from sampler.config import SamplerConfig
from sampler.settle import settle, settle_next
from shared.documents import Task
from shared.states import RecordStatus, TaskStatus
from shared.store import Store
from tests.sampler.builders import play_episode
from tests.shared.builders import claim, import_tasks

CONFIG = SamplerConfig(run="r", db_connection_string="x", model_name_or_path=Path("."))


async def completed_group(store: Store, scores: list[float | None]) -> Task:
    await import_tasks(store, 1, num_generations=len(scores))
    for score in scores:
        got = await claim(store)
        if score is None:
            await store.records.start(got, "w")
            await store.records.move(got.record_id, RecordStatus.FAILED, {"error": "engine down"})
            await store.tasks.retry_slot(got, "engine down", delay_s=0, max_failures=1)
        else:
            await play_episode(store, got, score)
    task = await store.tasks.get("main:train:0:t0")
    assert task is not None
    assert task.status is TaskStatus.COMPLETED
    return task


async def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    names = ("tasks", "records", "dispatched_sampling_tasks", "record_data")
    found = {name: await store.database[name].find().sort("_id", 1).to_list() for name in names}
    for document in found["tasks"]:
        for name in ("settled_at", "settler", "free_at"):
            document.pop(name)
    return found


async def test_a_group_becomes_record_data_with_its_advantages(store: Store) -> None:
    await completed_group(store, [1.0, 0.0, 0.0, 1.0])
    assert await settle_next(store, "w", CONFIG) is not None
    data = await store.data.find({})
    assert [d.reward for d in data] == [1.0, 0.0, 0.0, 1.0]
    assert [d.dispatches[0].advantage for d in data] == [0.5, -0.5, -0.5, 0.5]
    assert {d.group_size for d in data} == {4}
    records = await store.records.get_many([d.id for d in data])
    assert {r.status for r in records.values()} == {RecordStatus.READY}
    dispatches = await store.records.dispatches_of([data[0].id])
    assert [d.advantage for d in dispatches[data[0].id]] == [0.5, 0.5]


async def test_a_failed_slot_is_no_part_of_the_statistics(store: Store) -> None:
    task = await completed_group(store, [1.0, None, 0.0])
    await settle(store, task, CONFIG)
    data = await store.data.find({})
    assert [d.dispatches[0].advantage for d in data] == [0.5, -0.5]
    assert {d.group_size for d in data} == {2}
    settled = await store.tasks.get(task.id)
    assert settled is not None
    assert settled.scores == [1.0, None, 0.0]


async def test_a_group_with_too_few_scores_is_abandoned_with_its_reason(store: Store) -> None:
    task = await completed_group(store, [1.0, None, None])
    await settle(store, task, CONFIG)
    settled = await store.tasks.get(task.id)
    assert settled is not None
    assert settled.status is TaskStatus.ABANDONED
    assert settled.outcome == "abandoned: 1 of 3 episodes have a score"
    assert await store.data.find({}) == []


async def test_records_of_lost_attempts_are_abandoned(store: Store) -> None:
    await import_tasks(store, 1, num_generations=2)
    lost = await claim(store, "dies", lease_s=0.0)
    await store.records.start(lost, "dies")
    for score in (1.0, 0.0):
        await play_episode(store, await claim(store), score)
    await settle_next(store, "w", CONFIG)
    record = await store.records.get(lost.record_id)
    assert record is not None
    assert record.status is RecordStatus.ABANDONED


async def test_settling_twice_changes_nothing(store: Store) -> None:
    task = await completed_group(store, [1.0, 0.0])
    await settle(store, task, CONFIG)
    before = await everything(store)
    await settle(store, task, CONFIG)
    assert await everything(store) == before


@pytest.mark.parametrize("verb", ["set_advantages", "write_group", "settle_group", "finish_settlement"])
async def test_a_settler_that_dies_at_any_verb_is_replaced_with_the_same_result(
    store: Store, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await completed_group(store, [1.0, 0.0, 0.5])

    class Died(BaseException):
        pass

    async def die(*_: object, **__: object) -> None:
        raise Died

    owner = {"set_advantages": store.records, "settle_group": store.records, "write_group": store.data}.get(
        verb, store.tasks
    )
    with monkeypatch.context() as patch:
        patch.setattr(owner, verb, die)
        with pytest.raises(Died):
            await settle(store, task, CONFIG)
    await settle(store, task, CONFIG)
    after_death = await everything(store)
    await settle(store, task, CONFIG)
    assert await everything(store) == after_death
    assert [d.dispatches[0].advantage for d in await store.data.find({})] == [0.5, -0.5, 0.0]
    settled = await store.tasks.get(task.id)
    assert settled is not None
    assert settled.status is TaskStatus.SETTLED


async def test_an_evaluation_group_is_closed_without_training_data(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1, split="eval")
    await play_episode(store, await claim(store, split="eval"), 1.0)
    task = await settle_next(store, "w", CONFIG)
    assert task is not None
    settled = await store.tasks.get(task.id)
    assert settled is not None
    assert (settled.status, settled.outcome) == (TaskStatus.SETTLED, "evaluated")
    assert await store.data.find({}) == []
    assert await store.tasks.rewards_by_source("eval", 0) == {"test": (1.0, 1)}
