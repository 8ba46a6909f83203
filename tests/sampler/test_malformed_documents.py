"""Documents that a person corrupted in Compass: each is set aside by name, and the sampler's regular work continues."""

import contextlib
import random
from datetime import datetime
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import DuplicateKeyError

from sampler.settings import SamplerConfig
from shared.documents import Claim
from shared.documents.run import Admission, InferenceService, Worker
from shared.documents.states import RecordStatus, ServiceStatus, TaskStatus
from shared.errors import LeaseLost
from shared.store import Store
from tandem.commands.run_status import read_status
from tests.sampler.episodes import MODEL
from tests.sampler.settling import settle_next
from tests.shared.builders import claim, import_tasks, make_answer, make_task

Spoil = dict[str, Any]
FIRST = "main:train:0:t0"


def config(store: Store) -> SamplerConfig:
    values = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL}
    return SamplerConfig.model_validate(values)


async def scored(store: Store, got: Claim, score: float) -> str:
    """A claimed episode that is never played."""
    await store.records.start(got, "w")
    await store.records.open_dispatch(make_answer(got.record_id))
    await store.records.move(got.record_id, RecordStatus.SCORED, {"score": score, "traj": [f"{got.record_id}:0"]})
    await store.tasks.finish_slot(got, score)
    return got.record_id


async def task(store: Store, task_id: str) -> dict[str, Any]:
    found = await store.database["tasks"].find_one({"_id": task_id})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("update", "named"),
    [
        ({"$set": {"note": "mine"}}, "note: Extra inputs are not permitted"),
        ({"$set": {"slots": "two"}}, "slots: "),
        ({"$set": {"slots.0.attempt": "x"}}, "slots.0.attempt: "),
        ({"$set": {"slots.1.failures": "many"}}, "slots.1.failures: "),
        ({"$unset": {"slots.0.traj_id": 1}}, "slots.0.traj_id: Field required"),
        ({"$set": {"slots.0.traj_id": 1}}, "slots: expected traj_id 0 to 1, in order"),
        ({"$unset": {"payload": 1}}, "payload: Field required"),
        ({"$set": {"payload.tools": 4}}, "payload.tools: "),
        ({"$set": {"num_generations": [2]}}, "num_generations: "),
    ],
)
async def test_a_malformed_task_is_abandoned_by_name_and_the_next_one_is_claimed(
    store: Store, update: Spoil, named: str
) -> None:
    await import_tasks(store, 2)
    await store.database["tasks"].update_one({"_id": FIRST}, update)
    got = await claim(store)
    assert got is not None
    assert got.task.id == "main:train:0:t1"
    found = await task(store, FIRST)
    assert found["status"] == TaskStatus.ABANDONED
    assert f"malformed: tasks {FIRST}: {named}" in found["outcome"]
    (told,) = (await read_status(store)).malformed
    assert f"tasks {FIRST}: {named}" in told


@pytest.mark.parametrize(
    "update", [{"$set": {"slots.1.failures": "x", "slots.1.free_at": {"a": 1}}}, {"$set": {"n": 1}}]
)
async def test_a_task_that_becomes_malformed_while_played_ends_only_its_own_episodes(
    store: Store, update: Spoil
) -> None:
    await import_tasks(store, 2)
    played, other, healthy = [await claim(store) for _ in range(3)]
    assert [c.task.id for c in (played, other, healthy)] == [FIRST, FIRST, "main:train:0:t1"]
    await store.database["tasks"].update_one({"_id": FIRST}, update)
    await store.database["tasks"].update_one({"_id": FIRST}, {"$set": {"slots.0.status": 7}})
    lost = await store.tasks.renew_leases([played, healthy], 60)
    assert lost == [played]
    with pytest.raises(LeaseLost):
        await store.tasks.finish_slot(played, 1.0)
    await store.tasks.finish_slot(healthy, 1.0)


@pytest.mark.parametrize("slots", ["two", None, {"a": 1}])
async def test_a_task_without_a_list_of_slots_is_held_by_no_gateway(store: Store, slots: Any) -> None:
    await import_tasks(store, 2, num_generations=1)
    spoilt, healthy = [await claim(store) for _ in range(2)]
    await store.database["tasks"].update_one({"_id": spoilt.task.id}, {"$set": {"slots": slots}})
    assert await store.sessions.held_by("w", [spoilt, healthy]) == {healthy.record_id}


@pytest.mark.parametrize(
    ("collection", "suffix", "update", "named"),
    [
        ("records", "", {"$set": {"note": "mine"}}, "note: Extra inputs"),
        ("records", "", {"$set": {"policy_scores": 3}}, "policy_scores: "),
        ("dispatched_sampling_tasks", ":0", {"$set": {"note": "mine"}}, "note: Extra inputs"),
        ("dispatched_sampling_tasks", ":0", {"$unset": {"prompt_ids": 1}}, "prompt_ids: Field required"),
        ("dispatched_sampling_tasks", ":0", {"$set": {"prompt_ids": b"abc"}}, "do not form a token tree"),
        ("dispatched_sampling_tasks", ":0", {"$set": {"weight_versions": [[0, 7]]}}, "do not form a token tree"),
        (
            "dispatched_sampling_tasks",
            ":0",
            {"$set": {"sampling_params": {"temperature": "hot"}}},
            "do not form a token tree",
        ),
        ("records", "", None, "it is gone"),
    ],
)
async def test_an_unreadable_record_is_excluded_from_its_group(
    store: Store, collection: str, suffix: str, update: Spoil | None, named: str
) -> None:
    await import_tasks(store, 1, num_generations=3)
    ids = [await scored(store, await claim(store), score) for score in (0.0, 1.0, 0.0)]
    where = {"_id": ids[1] + suffix}
    if update is None:
        await store.database[collection].delete_one(where)
    else:
        await store.database[collection].update_one(where, update)
    settled = await settle_next(store, "w", config(store))
    assert settled is not None
    assert (await task(store, FIRST))["status"] in (TaskStatus.SETTLED, TaskStatus.ABANDONED)
    assert {d.record for d in await store.data.find({})} == {ids[0], ids[2]}
    (told,) = (await read_status(store)).malformed
    assert ids[1] in told
    assert named in told
    assert await settle_next(store, "w", config(store)) is None


async def test_malformed_status_documents_are_skipped_until_repaired(store: Store) -> None:
    for url in ("http://a", "http://b"):
        up = {"url": url, "policy": "main", "version": 0, "status": ServiceStatus.UP, "heartbeat_s": 3600}
        await store.services.heartbeat(InferenceService(id=url, **up))
        await store.workers.heartbeat(Worker(id=url, kind="sampler", host="h", pid=1))
    for step in range(3):
        await store.versions.announce("main", step, f"step-{step}", {})
    for collection, identity in (
        *(("inference_services", "http://a"), ("workers", "http://a"), ("policy_versions", "main:2")),
        ("runs", "run"),
    ):
        await store.database[collection].update_one({"_id": identity}, {"$set": {"note": "mine"}})
    newest = await store.versions.newest("main")
    assert newest is not None
    assert newest.version == 1
    assert [v.version for v in await store.versions.all("main")] == [0, 1]
    assert [s.url for s in await store.services.live("main")] == ["http://b"]
    assert [w.id for w in await store.workers.live()] == ["http://b"]
    assert [line.split(":")[0] for line in (await read_status(store)).malformed] == [
        *("runs run", "policy_versions main", "inference_services http", "workers http")
    ]
    for collection in ("inference_services", "workers", "policy_versions", "runs"):
        await store.database[collection].update_many({}, {"$unset": {"note": 1}})
    assert (await read_status(store)).malformed == []
    assert len(await store.services.live("main")) == 2


@pytest.mark.parametrize("seed", range(3))
async def test_random_changes_of_documents_never_end_a_samplers_regular_work(store: Store, seed: int) -> None:
    """Claim, renew, play, settle, and read_status at what there is, with one more document spoilt every time."""
    rng = random.Random(seed)
    await store.runs.start_trainer("main", Admission(groups_per_step=1, max_staleness=1))
    await import_tasks(store, 60)
    collections = ("tasks", "records", "dispatched_sampling_tasks", "policy_versions", "inference_services", "workers")
    for step in range(10):
        await store.versions.announce("main", step, f"step-{step}", {})
    held: list[Claim] = []
    for turn in range(60):
        up = {"url": "http://a", "policy": "main", "version": 0, "status": ServiceStatus.UP, "heartbeat_s": 3600}
        await store.services.heartbeat(InferenceService(id="http://a", **up))
        await store.workers.heartbeat(Worker(id=f"w{turn % 3}", kind="sampler", host="h", pid=1))
        got = await claim(store)
        if got is not None:
            held.append(got)
        lost = await store.tasks.renew_leases(held, 60)
        held = [c for c in held if c not in lost]
        while len(held) > 3:
            try:
                await scored(store, held.pop(0), rng.random())
            except LeaseLost:
                continue
        await spoil(store, rng, rng.choice(collections))
        while await settle_next(store, "w", config(store)) is not None:
            pass
        await store.versions.newest("main")
        await store.versions.all("main")
        await store.services.live("main")
        await store.workers.live()
    await store.database["tasks"].insert_one(make_task(1000).to_mongo())
    assert await claim(store, seq_limit=None) is not None
    await read_status(store)


async def spoil(store: Store, rng: random.Random, collection: str) -> None:
    """One document, at one of its fields, or with one more."""
    found = await store.database[collection].find().to_list()
    if not found:
        return
    document = rng.choice(found)
    fields = [name for name in document if name not in ("_id", "status", "policy", "seq", "split")]
    name = rng.choice([*fields, "note"])
    value = rng.choice(
        [None, "x", -1, 2**62, 1.5, True, [], [1, "x"], {}, {"a": {"b": 1}}, b"abc", ObjectId(), datetime(1970, 1, 1)]
    )
    change = {"$unset": {name: 1}} if rng.random() < 0.3 else {"$set": {name: value}}
    with contextlib.suppress(DuplicateKeyError):  # an index refuses what would be another document
        await store.database[collection].update_one({"_id": document["_id"]}, change)
