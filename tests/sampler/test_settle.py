"""Settlement in the database: advantages, training data, what is dropped and why, and that doing it twice changes nothing."""

import pytest

from sampler.core.settlement.groups import read_episode
from shared.documents import DataClaim, TaskPayload
from shared.documents.run import Admission
from shared.documents.states import DataStatus, RecordStatus, TaskStatus, Termination
from shared.evaluation.rounds import evaluation_round
from shared.store import Store
from shared.tasks.admission import seq_limit
from tandem.audit.run import audit
from tests.sampler.builders import play_episode
from tests.sampler.groups import EVERY_RULE, completed_group, everything, timeless, varied_group
from tests.sampler.settlement_cases import ESTIMATORS, make_config
from tests.sampler.settlement_reference import expected_settlement
from tests.sampler.settling import settle, settle_next
from tests.shared.builders import claim, import_tasks, make_task

CONFIG = make_config({})


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


async def test_training_data_carries_the_metrics_of_its_record(store: Store) -> None:
    task = await completed_group(store, [1.0, 0.0])
    await store.database["records"].update_one({"_id": f"{task.id}:1:1"}, {"$set": {"metrics": {"lost": 2.0}}})
    await settle(store, task, CONFIG)
    assert [d.metrics for d in await store.data.find({})] == [{}, {"lost": 2.0}]


async def test_a_failed_slot_is_excluded_from_the_statistics(store: Store) -> None:
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
    assert settled.outcome == "abandoned: 1 of 3 episodes can be trained on"
    (data,) = await store.data.find({})
    assert (data.status, data.reason) == (DataStatus.DROPPED, "1 of 3 episodes can be trained on")
    assert await store.data.ready_groups("main", 10) == []


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
    before = timeless(await everything(store))
    await settle(store, task, CONFIG)
    assert timeless(await everything(store)) == before


async def test_settlement_skips_the_next_epoch_of_always_solved_tasks(store: Store) -> None:
    payload = TaskPayload(query="2+2?", answer="4", max_pass_rate=0.9)
    tasks = [make_task(epoch, epoch=epoch, tid="t").model_copy(update={"payload": payload}) for epoch in range(2)]
    await store.tasks.insert_new(tasks)
    for _ in range(2):
        await play_episode(store, await claim(store), 1.0)
    await settle_next(store, "w", CONFIG)
    following = await store.tasks.get(tasks[1].id)
    assert following is not None
    assert following.status is TaskStatus.SKIPPED


async def test_an_evaluation_group_is_closed_without_training_data(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1, split="eval")
    await play_episode(store, await claim(store, split="eval"), 1.0)
    task = await settle_next(store, "w", CONFIG)
    assert task is not None
    settled = await store.tasks.get(task.id)
    assert settled is not None
    assert (settled.status, settled.outcome) == (TaskStatus.SETTLED, "evaluated")
    assert await store.data.find({}) == []
    figures = (await evaluation_round(store, "main", 0)).by_source["test"]
    assert (figures.tasks, figures.pass_at[1].value) == (1, 1.0)


@pytest.mark.parametrize("case", ["zscore", "reward_to_go, discounted", "gigpo, both"])
async def test_documents_carry_the_advantages_of_the_formulas_turn_by_turn(store: Store, case: str) -> None:
    task, config = await varied_group(store), make_config(ESTIMATORS[case])
    scores = {slot.record_id: slot.score for slot in task.slots if slot.record_id and slot.score is not None}
    records, dispatches = await store.records.get_many(list(scores)), await store.records.dispatches_of(list(scores))
    group = [read_episode(records[rid], score, dispatches[rid], observations=True) for rid, score in scores.items()]
    expected = expected_settlement(group, 10, config.group).advantages
    await settle(store, task, config)
    stored = await store.records.dispatches_of(list(scores))
    assert {d.id: d.advantage for ds in stored.values() for d in ds} == pytest.approx(expected, abs=1e-9)
    trained = {d.id: d.advantage for data in await store.data.find({}) for d in data.dispatches}
    assert trained == pytest.approx(expected, abs=1e-9)
    assert len(set(expected.values())) >= 3
    assert [d.score for d in stored["main:train:0:t0:3:1"]] == [0.25, None, -0.5, None], "what turns earned stays"
    assert (await audit(store)).ok


async def test_a_dropped_episode_is_stored_with_its_reason_and_belongs_to_no_group(store: Store) -> None:
    task = await varied_group(store)
    await settle(store, task, make_config(EVERY_RULE))
    data = {d.id: d for d in await store.data.find({})}
    kept = {rid for rid, d in data.items() if d.status is DataStatus.READY}
    assert len(data) == 9, "all but the failed slot"
    assert {d.group_size for d in data.values() if d.status is DataStatus.READY} == {len(kept)}
    assert {d.group_size for d in data.values() if d.status is DataStatus.DROPPED} == {0}
    (group,) = await store.data.ready_groups("main", 10)
    assert set(group["records"]) == kept
    records = await store.records.get_many(list(data))
    for rid, d in data.items():
        dropped = rid not in kept
        assert records[rid].status is (RecordStatus.ABANDONED if dropped else RecordStatus.READY)
        assert (records[rid].advantage is None) == dropped
        if dropped:
            assert records[rid].reason == d.reason is not None
    reasons = (await store.questions.set_aside())["dropped"]
    assert reasons["correct in fewer than 2 turns"] == 1
    assert reasons["over-long, beyond the 2 kept of a group"] == 1
    settled = await store.tasks.get(task.id)
    assert settled is not None
    assert settled.outcome is not None
    assert settled.outcome.startswith(f"ready; {9 - len(kept)} of 9 dropped")
    report = await audit(store)
    assert report.ok, report


async def test_a_masked_episode_has_an_advantage_and_no_trained_token(store: Store) -> None:
    await import_tasks(store, 1, num_generations=3)
    for score, termination in ((1.0, "answered"), (0.0, "answered"), (0.0, "length_limit")):
        await play_episode(store, await claim(store), score, version=5, termination=Termination(termination))
    await settle_next(store, "w", make_config({"mask_overlong": True}))
    data = await store.data.find({})
    assert [d.num_trained_tokens for d in data] == [4, 4, 0]
    assert [d.dispatches[0].advantage for d in data] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    (group,) = await store.data.ready_groups("main", 10)
    assert (group["versions"], len(group["records"])) == ([5], 3), "a record without a loss has no age"
    assert await store.questions.ready_versions("main") == {5: 2}
    assert (await audit(store)).ok


async def test_an_episode_without_a_reply_is_dropped_and_its_group_is_settled(store: Store) -> None:
    await import_tasks(store, 1, num_generations=3)
    for score, turns in ((0.0, 0), (1.0, 1), (0.0, 2)):
        await play_episode(store, await claim(store), score, turns=turns, termination=Termination.LENGTH_LIMIT)
    await settle_next(store, "w", CONFIG)
    assert [d.group_size for d in await store.data.find({})] == [2, 2]
    record = await store.records.get("main:train:0:t0:0:1")
    assert record is not None
    assert (record.status, record.reason) == (RecordStatus.ABANDONED, "the model never replied")


async def test_a_dropped_group_opens_one_replacement_and_a_partly_dropped_one_none(store: Store) -> None:
    """Dynamic sampling: the gate of admission moves by exactly the groups that the trainer will not get."""
    scores = {0: (1.0, 1.0, 1.0), 1: (1.0, 0.0, 0.0), 2: (0.0, 0.0, 0.0), 3: (1.0, 0.0, 1.0)}
    await store.tasks.insert_new([make_task(seq, num_generations=3) for seq in scores])
    while (got := await claim(store)) is not None:
        await play_episode(store, got, scores[got.task.seq][got.traj_id])
    config = make_config({"zero_variance_tolerance": 1e-6, "balance_sample": True})

    async def limit() -> int:
        return (await seq_limit(store, ["main"], {"main": Admission(groups_per_step=2, max_staleness=1)}))[0]

    assert await limit() == 4
    while await settle_next(store, "w", config) is not None:
        pass
    assert await limit() == 6
    assert await store.questions.abandoned_tasks() == {"abandoned: zero variance: scores differ by less than 1e-06": 2}
    left, taken = await store.data.ready_groups("main", 10)
    await store.data.set_aside(left["records"], DataStatus.STALE, "too old")
    assert await limit() == 7
    await store.data.claim(taken["records"], DataClaim(trainer_generation=1, step=1))
    await store.data.commit_step("main", DataClaim(trainer_generation=1, step=1), max_trained_count=1)
    assert await limit() == 7
