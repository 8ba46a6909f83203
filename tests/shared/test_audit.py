"""Each promise of the audit: a whole run keeps it, and a database that breaks it is found out."""

import asyncio
from typing import Any

import numpy as np
import pytest

from shared.audit import Check, audit
from shared.documents import DBRecordData
from shared.mongod import Mongod
from shared.packed import pack_floats, pack_ints, pack_tree
from shared.states import DataStatus
from shared.store import Store
from tests.shared.builders import claim, make_task
from tests.shared.episodes import make_episode_tree, play, settle, train, whole_run

TASK = "main:train:0:t0"
RECORD = f"{TASK}:0:1"

Corruption = tuple[str, dict[str, Any], dict[str, Any]]


async def test_a_whole_run_keeps_every_promise_and_is_counted(store: Store) -> None:
    await whole_run(store)
    report = await audit(store)
    assert report.ok, report
    assert [c for c, r in report.results.items() if r.examined == 0] == [
        Check.FAILED,
        Check.DROPPED,
    ], "nothing failed or was dropped here"
    assert report.counts == {
        "tasks opened": 2,
        "slots scored": 4,
        "records with training data": 4,
        "records trained": 2,
        "tokens": 48,
        "tokens with a loss": 24,
        "tokens trained": 12,
    }
    assert report.results[Check.SAMPLED].examined == 24


async def test_an_empty_run_is_in_order(store: Store) -> None:
    assert (await audit(store)).ok


def _tree_with(name: str, at: int, value: float) -> dict[str, Any]:
    """The update that puts a tree with one changed entry into the training data."""
    tree = make_episode_tree("r", 1.0)
    arrays = {
        n: getattr(tree, n).copy() for n in ("token_ids_N", "parents_N", "dispatches_N", "logprobs_N", "versions_N")
    }
    arrays[name][at] = value
    return {"$set": pack_tree(**arrays)}


NEXT_FLOAT = float(np.nextafter(np.float32(-0.4), np.float32(0)))

CORRUPTIONS: dict[str, tuple[Check, Corruption]] = {
    "a leased slot": (Check.ENDED, ("tasks", {"_id": TASK}, {"$set": {"slots.0.status": "leased"}})),
    "a failed slot with a score": (Check.FAILED, ("tasks", {"_id": TASK}, {"$set": {"slots.0.status": "failed"}})),
    "a failed slot with training data": (
        Check.FAILED,
        ("tasks", {"_id": TASK}, {"$set": {"slots.0.status": "failed", "slots.0.score": None}}),
    ),
    "a record that is gone": (Check.RECORDS, ("records", {"_id": RECORD}, {})),
    "another slot's record": (
        Check.RECORDS,
        ("tasks", {"_id": TASK}, {"$set": {"slots.0.record_id": f"{TASK}:1:1"}}),
    ),
    "a record of a later attempt": (Check.RECORDS, ("records", {"_id": RECORD}, {"$set": {"attempt": 2}})),
    "a record of an earlier attempt": (Check.RECORDS, ("tasks", {"_id": TASK}, {"$set": {"slots.0.attempt": 2}})),
    "another score than the record's": (Check.RECORDS, ("records", {"_id": RECORD}, {"$set": {"score": 0.5}})),
    "a scored slot without a score": (Check.RECORDS, ("tasks", {"_id": TASK}, {"$set": {"slots.0.score": None}})),
    "a scored slot without a record": (Check.RECORDS, ("tasks", {"_id": TASK}, {"$set": {"slots.0.record_id": None}})),
    "training data of a slot that was not scored": (
        Check.OWNED,
        ("tasks", {"_id": TASK}, {"$set": {"slots.0.status": "open"}}),
    ),
    "training data of another task": (Check.OWNED, ("record_data", {"_id": RECORD}, {"$set": {"task": "other"}})),
    "an unknown field": (Check.READABLE, ("records", {"_id": RECORD}, {"$set": {"surprise": 1}})),
    "a task without a query": (Check.READABLE, ("tasks", {"_id": TASK}, {"$unset": {"payload.query": 1}})),
    "a changed prompt token": (Check.TOKENS, ("record_data", {"_id": RECORD}, _tree_with("token_ids_N", 1, 99))),
    "a changed tool token": (Check.TOKENS, ("record_data", {"_id": RECORD}, _tree_with("token_ids_N", 7, 99))),
    "a changed sampled token": (Check.SAMPLED, ("record_data", {"_id": RECORD}, _tree_with("token_ids_N", 4, 99))),
    "a log-prob that differs in its last bit": (
        Check.LOGPROBS,
        ("record_data", {"_id": RECORD}, _tree_with("logprobs_N", 3, NEXT_FLOAT)),
    ),
    "another weight version": (Check.VERSIONS, ("record_data", {"_id": RECORD}, _tree_with("versions_N", 8, 4))),
    "another reply than the tree's": (
        Check.TOKENS,
        (
            "dispatched_sampling_tasks",
            {"_id": f"{RECORD}:1"},
            {"$set": {"response.output_ids": pack_ints([9, 11])}},
        ),
    ),
    "a shorter shared prefix": (
        Check.TOKENS,
        ("dispatched_sampling_tasks", {"_id": f"{RECORD}:2"}, {"$set": {"shared_length": 4}}),
    ),
    "a shared prefix longer than the parent": (
        Check.TOKENS,
        ("dispatched_sampling_tasks", {"_id": f"{RECORD}:1"}, {"$set": {"shared_length": 60}}),
    ),
    "a dispatch that is gone": (Check.TOKENS, ("dispatched_sampling_tasks", {"_id": f"{RECORD}:0"}, {})),
    "parents that go in a circle": (
        Check.TOKENS,
        ("dispatched_sampling_tasks", {"_id": f"{RECORD}:0"}, {"$set": {"parent": f"{RECORD}:1"}}),
    ),
    "fewer log-probs than ids": (
        Check.TOKENS,
        (
            "dispatched_sampling_tasks",
            {"_id": f"{RECORD}:1"},
            {"$set": {"response.output_logprobs": pack_floats([-1.0])}},
        ),
    ),
    "a tree that contradicts itself": (
        Check.TOKENS,
        ("record_data", {"_id": RECORD}, _tree_with("parents_N", 2, 5)),
    ),
    "another advantage than the mean of its turns": (
        Check.ADVANTAGES,
        ("records", {"_id": RECORD}, {"$set": {"advantage": 0.5}}),
    ),
    "a group that lacks a record": (Check.GROUPS, ("record_data", {"_id": RECORD}, {})),
    "a group of another size": (Check.GROUPS, ("record_data", {"task": TASK}, {"$set": {"group_size": 3}})),
    "dropped without a reason": (Check.DROPPED, ("record_data", {"_id": RECORD}, {"$set": {"group_size": 0}})),
    "a wrong token count": (Check.SUMMARY, ("record_data", {"_id": RECORD}, {"$set": {"num_trained_tokens": 7}})),
    "a wrong oldest version": (Check.SUMMARY, ("record_data", {"_id": RECORD}, {"$set": {"min_version": 4}})),
    "a step counted twice": (
        Check.STEPS,
        ("record_data", {"_id": RECORD}, {"$set": {"trained_steps": [1, 1], "trained_count": 2}}),
    ),
    "a step too many": (
        Check.STEPS,
        ("record_data", {"_id": RECORD}, {"$set": {"trained_steps": [0, 1], "trained_count": 2}}),
    ),
    "a count that is not that of the steps": (
        Check.STEPS,
        ("record_data", {"_id": RECORD}, {"$set": {"trained_count": 0}}),
    ),
    "a mark that the record does not carry": (
        Check.MARKS,
        ("records", {"_id": RECORD}, {"$set": {"trained_count": 0}}),
    ),
    "a step beyond the newest weights": (
        Check.SURVIVING,
        ("record_data", {"_id": RECORD}, {"$set": {"trained_steps": [9], "last_trained_step": 9}}),
    ),
    "weights that were withdrawn": (Check.SURVIVING, ("policy_versions", {"step": 1}, {"$set": {"withdrawn_to": 0}})),
    "another advantage than trained with": (
        Check.ADVANTAGES,
        ("dispatched_sampling_tasks", {"_id": f"{RECORD}:1"}, {"$set": {"advantage": 0.99}}),
    ),
    "an advantage that was never written": (
        Check.ADVANTAGES,
        ("dispatched_sampling_tasks", {"_id": f"{RECORD}:1"}, {"$set": {"advantage": None}}),
    ),
}


@pytest.fixture(scope="module")
def played(mongod: Mongod) -> str:
    """A run of one trained group, played once for all corruptions: each puts back what it changed."""

    async def play_it() -> None:
        async with Store.open(mongod.connection_string, "audited") as store:
            await whole_run(store, tasks=1)
            assert (await audit(store)).ok

    asyncio.run(play_it())
    return "audited"


@pytest.mark.parametrize("what", CORRUPTIONS)
async def test_the_audit_finds(mongod: Mongod, played: str, what: str) -> None:
    check, (collection, where, change) = CORRUPTIONS[what]
    async with Store.open(mongod.connection_string, played) as store:
        documents = store.database[collection]
        before = await documents.find_one(where)
        assert before is not None
        if change:
            assert (await documents.update_one(where, change)).modified_count == 1
        else:
            await documents.delete_one(where)
        report = await audit(store)
        await documents.replace_one({"_id": before["_id"]}, before, upsert=True)
    assert not report.ok
    assert report.results[check].violations, {c.name: r.examples for c, r in report.results.items() if r.violations}
    assert all(len(example) > 20 for example in report.results[check].examples)


async def test_the_audit_finds_a_slot_that_was_trained_twice(store: Store) -> None:
    await whole_run(store, tasks=1)
    for collection in ("records", "record_data"):
        document = await store.database[collection].find_one({"_id": RECORD})
        assert document is not None
        document |= {"_id": f"{TASK}:0:2"} | ({"attempt": 2} if collection == "records" else {})
        await store.database[collection].insert_one(document)
    report = await audit(store)
    assert report.results[Check.ONCE].violations == 2
    assert report.results[Check.ONCE].examples[0] == f"one slot has 2 trained records: {RECORD}, {TASK}:0:2"


async def test_a_tree_with_tokens_that_no_dispatch_asked_for_is_found(store: Store) -> None:
    await whole_run(store, tasks=1)
    tree = make_episode_tree("r", 1.0)
    extra = pack_tree(
        token_ids_N=np.array([*range(1, 13), 13], dtype=np.int32),
        parents_N=np.array([-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 10, 11], dtype=np.int32),
        dispatches_N=np.array([-1, -1, -1, 0, 0, 0, -1, -1, 1, 1, -1, 2, -1], dtype=np.int32),
        logprobs_N=np.append(tree.logprobs_N, np.float32(0.0)),
        versions_N=np.append(tree.versions_N, np.int32(-1)),
    )
    await store.database["record_data"].update_one({"_id": RECORD}, {"$set": extra})
    report = await audit(store)
    assert "1 tokens of the tree lead to no dispatch's reply" in report.results[Check.TOKENS].examples[0]


async def test_a_reply_that_is_context_only_is_compared_as_context(store: Store) -> None:
    """A dispatch outside the training data may still be the parent of one inside."""
    await whole_run(store, tasks=1)
    tree = make_episode_tree(RECORD, 1.0)
    keep = np.array([0, 1, 2, 3, 4, 10, 11])  # the branch alone: of turn 0's reply two tokens, now as context
    fields = {
        **pack_tree(
            token_ids_N=tree.token_ids_N[keep],
            parents_N=np.arange(-1, 6, dtype=np.int32),
            dispatches_N=np.array([-1, -1, -1, -1, -1, -1, 0], dtype=np.int32),
            logprobs_N=np.array([0, 0, 0, 0, 0, 0, tree.logprobs_N[11]], dtype=np.float32),
            versions_N=np.array([-1, -1, -1, -1, -1, -1, 4], dtype=np.int32),
        ),
        "dispatches": [{"id": f"{RECORD}:2", "turn": 2, "advantage": 1.0, "temperature": 1.0, "trained": True}],
        "num_tokens": 7,
        "num_trained_tokens": 1,
        "min_version": 4,
    }
    await store.database["record_data"].update_one({"_id": RECORD}, {"$set": fields})
    report = await audit(store)
    assert report.ok, report


async def test_while_it_runs_open_slots_and_unannounced_steps_are_no_violation(store: Store) -> None:
    await whole_run(store, tasks=1)
    await store.tasks.insert_new([make_task(7)])
    held = await claim(store)
    assert not (await audit(store)).ok
    assert (await audit(store, running=True)).ok
    await play(store, held, 1.0)
    await play(store, await claim(store), 0.0)
    await settle(store)
    await train(store, 5)
    assert (await audit(store, running=True)).ok
    assert (await audit(store)).results[Check.SURVIVING].violations == 2
    assert (await audit(store, newest_step=5)).ok


async def test_the_limit_of_use_is_the_trainers_own_or_the_one_given(store: Store) -> None:
    await whole_run(store, tasks=1)
    await store.database["record_data"].update_many({}, {"$set": {"status": DataStatus.READY.value}})
    await train(store, 2, max_trained_count=2)
    assert (await audit(store, newest_step=2)).results[Check.STEPS].violations == 2
    assert (await audit(store, newest_step=2, max_trained_count=2)).ok
    await store.runs.save_config("trainer-main", {"max_trained_count": 2})
    assert (await audit(store, newest_step=2)).ok


async def test_what_was_set_aside_is_counted_by_reason(store: Store) -> None:
    records = await whole_run(store)
    await store.data.set_aside(records[2:3], DataStatus.STALE, "3 steps old; max_staleness is 2")
    await store.data.set_aside(records[3:4], DataStatus.DROPPED, "too long")
    report = await audit(store)
    assert report.ok
    assert report.set_aside == {"stale": {"3 steps old; max_staleness is 2": 1}, "dropped": {"too long": 1}}
    assert (report.counts["records stale"], report.counts["records dropped"]) == (1, 1)


async def test_a_slot_failed_by_plumbing_has_no_part_in_the_data(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    held = await claim(store)
    await store.records.start(held, "w")
    await store.tasks.retry_slot(held, "engine down", delay_s=0, max_failures=1)
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.FAILED].examined == 2


def test_the_builders_tree_is_a_valid_one() -> None:
    fields = DBRecordData.tree_fields(make_episode_tree("r", 1.0))
    assert (fields["num_tokens"], fields["num_trained_tokens"]) == (12, 6)
