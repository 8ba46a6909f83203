"""What people filter by in Compass and the viewer is found by an index: no more documents are read than shown."""

from typing import Any

import pytest
from pymongo.errors import OperationFailure

from shared.documents.states import RecordStatus, TaskStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.shared.builders import make_task
from tests.shared.episodes import whole_run

ENDED = [RecordStatus.READY.value, RecordStatus.ABANDONED.value, RecordStatus.FAILED.value, RecordStatus.SCORED.value]
VIEW: dict[str, Any] = {"split": {"$in": ["train", "eval"]}, "status": {"$in": ENDED}}


async def made_many(store: Store, number: int = 400) -> None:
    """A played run; copies of one of its records and of one of its turns, of which one in a hundred is as sought."""
    await whole_run(store)
    for name in ("records", "dispatched_sampling_tasks"):
        documents = store.database[name]
        one = await documents.find_one(sort=[("_id", 1)])
        assert one is not None
        rare = {"score": 0.5, "termination": "repetition", "source": "rare", "tid": "rare"}
        if name != "records":
            call = {**one["tool_calls"][0], "is_error": True}
            rare = {"status": "formaterror", "error": "no JSON", "tool_calls": [call]}
        copies = [
            {**one, "_id": f"copy-{k}", "traj_id": 10 + k, **(rare if k % 100 == 0 else {})} for k in range(number)
        ]
        await documents.insert_many(copies)


@pytest.mark.parametrize(
    "where", [{"source": "rare"}, {"tid": "rare"}, {"termination": "repetition"}, {"score": {"$gte": 0.4, "$lte": 0.6}}]
)
async def test_a_search_of_episodes_reads_what_it_shows(store: Store, where: dict[str, Any]) -> None:
    await made_many(store)
    found = store.database["records"].find({**VIEW, **where}).sort([("finished_at", -1)]).limit(51)
    stats = (await found.explain())["executionStats"]
    assert (stats["nReturned"], stats["totalDocsExamined"]) == (4, 4)


@pytest.mark.parametrize(
    "where", [{"status": "formaterror", "error": {"$type": "string"}}, {"tool_calls.is_error": True}]
)
async def test_failed_turns_and_failed_calls_are_read_alone(store: Store, where: dict[str, Any]) -> None:
    await made_many(store)
    stats = (await store.database["dispatched_sampling_tasks"].find(where).explain())["executionStats"]
    assert (stats["nReturned"], stats["totalDocsExamined"]) == (4, 4)


async def test_a_turn_that_went_well_has_no_entry_in_the_indexes_of_wrong_ones(store: Store) -> None:
    """So that the write of every turn costs nothing for them."""
    await whole_run(store)
    turns = store.database["dispatched_sampling_tasks"]
    for index in ("failed", "tool errors"):
        where = {"error": {"$type": "string"}} if index == "failed" else {"tool_calls.is_error": True}
        stats = (await turns.find(where).hint(index).explain())["executionStats"]
        assert stats["totalKeysExamined"] == 0


@pytest.mark.parametrize("hindrance", ["its fields", "its name", "as many indexes"])
async def test_indexes_that_a_person_made_keep_no_process_from_its_start(
    mongod: Mongod, store: Store, caplog: pytest.LogCaptureFixture, hindrance: str
) -> None:
    records = store.database["records"]
    await records.drop_index("by score")
    if hindrance == "its fields":
        await records.create_index([("score", 1), ("finished_at", -1)])
    elif hindrance == "its name":
        await records.create_index([("score", 1)], name="by score")
    else:
        for number in range(64 - len(await records.index_information())):
            await records.create_index([(f"own{number}", 1)])
    async with Store.open(mongod.connection_string, store.run) as again:
        assert await again.runs.get() is not None
    assert [line for line in caplog.messages if "'by score'" in line and hindrance in line]


async def test_an_index_that_is_a_promise_is_made_or_the_process_ends(mongod: Mongod, store: Store) -> None:
    records = store.database["records"]
    await records.drop_index("identity")
    await records.create_index([("task", 1), ("traj_id", 1), ("attempt", 1)], name="identity")
    with pytest.raises(OperationFailure, match="same name"):
        async with Store.open(mongod.connection_string, store.run):
            pass


async def test_whether_work_is_left_is_known_without_reading_what_has_ended(store: Store) -> None:
    """`tandem tail` asks every second, and `tandem runs` asks of every run."""
    await store.tasks.insert_new([make_task(n, split="eval") for n in range(300)])
    await store.database["tasks"].update_many({}, {"$set": {"status": TaskStatus.SETTLED.value}})
    await store.database.command("profile", 2)
    assert not await store.questions.has_unended_tasks()
    await store.database.command("profile", 0)
    asked = [one async for one in store.database["system.profile"].find({"ns": f"{store.run}.tasks"})]
    assert asked
    assert sum(one.get("docsExamined", 0) for one in asked) == 0
    await store.database["tasks"].update_one({}, {"$set": {"status": TaskStatus.CREATED.value}})
    assert await store.questions.has_unended_tasks()
