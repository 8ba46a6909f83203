"""Records, training data, weights: repeated writes count once, and a resume undoes marks everywhere."""

import pytest
from pymongo.errors import DuplicateKeyError

from shared.documents import DataClaim, Record
from shared.documents.base import SCHEMA_VERSION
from shared.documents.run import Admission
from shared.documents.states import DataStatus, RecordStatus
from shared.errors import ConfigError, DataError, IllegalMove
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import claim, import_tasks, make_data, make_task
from tests.shared.episodes import make_dispatches, play, train

FIRST, SECOND = DataClaim(trainer_generation=1, step=1), DataClaim(trainer_generation=2, step=1)


async def groups(store: Store, n: int = 2) -> list[list[str]]:
    """`n` settled groups of two, in the order of their tasks; returns their record ids."""
    made = []
    for task in await import_tasks(store, n):
        data = [make_data(task, k) for k in range(2)]
        for k, one in enumerate(data):
            held = await claim(store)
            record = await store.records.start(held, "w")
            assert (record.id, k) == (one.id, held.traj_id)
        await store.data.write_group(data)
        made.append([d.id for d in data])
    return made


async def get(store: Store, record_id: str) -> Record:
    record = await store.records.get(record_id)
    assert record is not None
    return record


# ---------------------------------------------------------------------- episodes


async def test_an_episode_written_by_the_verbs_is_read_back_as_it_was(store: Store) -> None:
    await import_tasks(store, 1)
    held = await claim(store)
    await play(store, held, 1.0)
    record = await get(store, held.record_id)
    assert (record.status, record.score, record.attempt) == (RecordStatus.SCORED, 1.0, 1)
    assert record.created_at is not None
    assert record.finished_at is not None
    dispatches = (await store.records.dispatches_of([record.id]))[record.id]
    assert all(d.created_at and d.finished_at for d in dispatches)
    times = {"created_at": None, "finished_at": None}
    assert [d.model_copy(update=times) for d in dispatches] == make_dispatches(record.id)


async def test_starting_and_opening_again_changes_nothing(store: Store) -> None:
    await import_tasks(store, 1)
    held = await claim(store)
    await play(store, held, 1.0)
    collections = [store.database[name] for name in ("records", "dispatched_sampling_tasks")]
    before = [await c.find().sort("_id", 1).to_list() for c in collections]
    await store.records.start(held, "another")
    for dispatch in make_dispatches(held.record_id):
        await store.records.open_dispatch(dispatch)
    assert [await c.find().sort("_id", 1).to_list() for c in collections] == before


async def test_a_record_moves_only_along_its_states_and_the_same_move_again_is_fine(store: Store) -> None:
    await import_tasks(store, 1)
    held = await claim(store)
    await store.records.start(held, "w")
    with pytest.raises(IllegalMove, match="running -> ready"):
        await store.records.move(held.record_id, RecordStatus.READY, {})
    await store.records.move(held.record_id, RecordStatus.SCORED, {"answer": "$slots"})
    await store.records.move(held.record_id, RecordStatus.SCORED, {"answer": "late"})
    record = await get(store, held.record_id)
    assert (record.status, record.answer) == (RecordStatus.SCORED, "$slots")  # text, no field path; the first one stays
    with pytest.raises(IllegalMove, match="None -> scored"):
        await store.records.move("nobody", RecordStatus.SCORED, {})


async def test_settling_a_group_abandons_every_superseded_attempt(store: Store) -> None:
    await import_tasks(store, 1, num_generations=1)
    zombie = await claim(store, lease_s=0.0)
    await store.records.start(zombie, "zombie")
    heir = await claim(store)
    await play(store, heir, 1.0)
    await store.records.settle_group(heir.task.id, {heir.record_id: RecordStatus.READY}, {heir.record_id: 0.5}, {})
    assert (await get(store, heir.record_id)).advantage == 0.5
    assert (await get(store, zombie.record_id)).status is RecordStatus.ABANDONED


# ---------------------------------------------------------------------- the trainer's stream


async def test_only_whole_groups_are_offered_oldest_first(store: Store) -> None:
    whole = await groups(store, 2)
    await store.data.write_group([make_data(make_task(0, tid="part").model_copy(update={"seq": 9}), 0)])
    ready = await store.data.ready_groups("main", 10)
    assert [sorted(g["records"]) for g in ready] == whole
    assert await store.data.ready_groups("other", 10) == []


async def test_borrowed_data_is_not_offered_until_it_is_released(store: Store) -> None:
    [[a, b]] = await groups(store, 1)
    assert await store.data.claim([a, b], FIRST) == 2
    assert await store.data.claim([a, b], SECOND) == 0
    assert await store.data.ready_groups("main", 10) == []
    assert await store.data.release_claims("main", trainer_generation=1) == 0  # its own
    assert await store.data.release_claims("main", trainer_generation=2) == 2
    assert len(await store.data.ready_groups("main", 10)) == 1


async def test_a_commit_marks_what_it_borrowed_once_and_nothing_else(store: Store) -> None:
    [[a, b], [c, _]] = await groups(store, 2)
    assert await train(store, 1) == [a, b]
    assert await store.data.commit_step("main", FIRST, max_trained_count=1) == [a, b]  # again: nothing changes
    [data] = await store.data.load([a])
    assert (data.status, data.trained_steps, data.trained_count, data.claim) == (DataStatus.TRAINED, [1], 1, None)
    record = await get(store, a)
    assert (record.trained_count, record.last_trained_step) == (1, 1)
    assert (await store.data.load([c]))[0].status is DataStatus.READY


async def test_a_commit_of_an_earlier_trainer_generation_finds_nothing(store: Store) -> None:
    [[a, b]] = await groups(store, 1)
    await store.data.claim([a, b], FIRST)
    await store.data.release_claims("main", trainer_generation=2)
    await store.data.claim([a, b], SECOND)
    assert await store.data.commit_step("main", FIRST, max_trained_count=1) == []
    assert len(await store.data.commit_step("main", SECOND, max_trained_count=1)) == 2


async def test_data_stays_ready_until_it_was_used_as_often_as_allowed(store: Store) -> None:
    [[a, _]] = await groups(store, 1)
    await train(store, 1, max_trained_count=2)
    assert (await store.data.load([a]))[0].status is DataStatus.READY
    await train(store, 2, max_trained_count=2)
    [data] = await store.data.load([a])
    assert (data.status, data.trained_steps) == (DataStatus.TRAINED, [1, 2])
    assert await train(store, 3, max_trained_count=2) == []


async def test_a_resume_undoes_later_marks_on_data_and_records(store: Store) -> None:
    [[a, _], [c, _]] = await groups(store, 2)
    await train(store, 1)
    await train(store, 2)
    assert await store.data.rewind("main", 1, max_trained_count=1) == 2
    kept, undone = await store.data.load([a, c])
    assert (kept.status, kept.trained_steps) == (DataStatus.TRAINED, [1])
    assert (undone.status, undone.trained_steps, undone.last_trained_step) == (DataStatus.READY, [], None)
    record = await get(store, c)
    assert (record.trained_count, record.last_trained_step) == (0, None)
    assert await train(store, 2) == [c, c[:-3] + "1:1"]


async def test_data_set_aside_keeps_its_reason(store: Store) -> None:
    [[a, b], [c, d]] = await groups(store, 2)
    await store.data.set_aside([a, b], DataStatus.STALE, "5 steps old")
    await store.data.set_aside([c, d], DataStatus.DROPPED, "too long")
    assert await store.questions.set_aside() == {"stale": {"5 steps old": 2}, "dropped": {"too long": 2}}
    await store.data.rewind("main", 0, max_trained_count=1)  # stale is looked at again, dropped is final
    assert await store.data.count_by_status() == {"ready": 2, "dropped": 2}


async def test_a_group_written_again_keeps_its_marks(store: Store) -> None:
    [[a, _]] = await groups(store, 1)
    await train(store, 1)
    task = make_task(0)
    await store.data.write_group([make_data(task, k) for k in range(2)])
    assert (await store.data.load([a]))[0].trained_steps == [1]


# ---------------------------------------------------------------------- run, weights


async def test_each_start_of_a_trainer_is_a_new_trainer_generation(store: Store) -> None:
    admission = Admission(groups_per_step=2, max_staleness=1)
    assert [await store.runs.start_trainer("main", admission) for _ in range(2)] == [1, 2]
    assert not await store.runs.is_current_trainer("main", 1)
    assert await store.runs.is_current_trainer("main", 2)


async def test_versions_are_numbered_without_end_and_a_resume_withdraws_the_later_ones(store: Store) -> None:
    for step in (0, 1, 2, 3):
        await store.versions.announce("main", step, f"/w/{step}", {})
    assert await store.versions.withdraw_after("main", 1, 1) == 2
    newest = await store.versions.newest("main")
    assert newest is not None
    assert newest.version == 1
    again = await store.versions.announce("main", 2, "/w/2b", {})
    assert again.version == 4
    withdrawn = await store.versions.get("main", 3)
    assert withdrawn.staleness(2) == 3  # two steps back to the fork at 1, one forward
    with pytest.raises(DataError, match="no version 9"):
        await store.versions.get("main", 9)


async def test_a_run_starts_from_one_set_of_weights(store: Store) -> None:
    files = {"model.safetensors": {"sha256": "a", "bytes": 1}}
    assert (await store.versions.ensure_first("main", "/here", files)).path == "/here"
    assert (await store.versions.ensure_first("main", "/there", files)).path == "/here"
    with pytest.raises(DataError, match="checksums differ"):
        await store.versions.ensure_first("main", "/x", {"model.safetensors": {"sha256": "b", "bytes": 1}})


async def test_the_database_itself_refuses_a_second_record_of_an_attempt(store: Store) -> None:
    await import_tasks(store, 1)
    held = await claim(store)
    record = await store.records.start(held, "w")
    with pytest.raises(DuplicateKeyError):
        await store.database["records"].insert_one(record.to_mongo() | {"_id": "another"})


async def test_opening_a_run_that_must_exist_does_not_create_it(mongod: Mongod, store: Store) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="no run 'absent'"):
            async with Store.open(mongod.connection_string, "absent", must_exist=True):
                pass
    async with Store.open(mongod.connection_string, store.run, must_exist=True) as again:
        assert again.run in await again.questions.run_names()


async def test_a_run_of_another_schema_is_refused_with_a_remedy(store: Store) -> None:
    await store.database["runs"].update_one({"_id": "run"}, {"$set": {"schema_version": SCHEMA_VERSION - 1}})
    with pytest.raises(
        DataError,
        match=rf"schema {SCHEMA_VERSION - 1}, this program supports {SCHEMA_VERSION}; use the version that wrote it",
    ):
        await store.runs.ensure()
