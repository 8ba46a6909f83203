"""Each check of the audit: an intact run passes it, and a database that violates it is detected."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shared.documents.packed import pack_floats, pack_ints
from shared.documents.rules import RunRules
from shared.documents.run import Admission
from shared.documents.states import DataStatus
from shared.processes.mongod import Mongod
from shared.rules.run_rules import Rules
from shared.store import Store
from shared.tokens.flatten import data_fields
from tandem.audit.report import AuditReport
from tandem.audit.run import Check, audit
from tandem.audit.tokens import compare
from tests.shared.builders import claim, make_data, make_task, set_settings
from tests.shared.episodes import SCHEMAS, announce, make_dispatches, make_episode_tree, play, settle, train, whole_run

TASK = "main:train:0:t0"
RECORD = f"{TASK}:0:1"

Corruption = tuple[str, dict[str, Any], dict[str, Any]]


NOT_HERE = {Check.FAILED, Check.WAITING, Check.DROPPED, Check.EVALUATED, Check.FORKED, Check.RULES, Check.EXPERTS}


async def test_an_intact_run_passes_every_check_and_is_counted(store: Store) -> None:
    await whole_run(store)
    report = await audit(store)
    assert report.ok, report
    unseen = {check for check, result in report.results.items() if result.examined == 0}
    assert unseen == NOT_HERE, "none of these is here"
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


async def test_a_held_out_episode_of_other_weights_or_with_training_data_is_a_violation(store: Store) -> None:
    """The episodes of `play` are sampled by versions 3 and 4, in the last turn by 4 alone."""
    await store.tasks.insert_new([make_task(0, split="eval", num_generations=1, at_version=4)])
    held = await claim(store, split="eval", served_versions=[4])
    await play(store, held, 1.0)
    result = (await audit(store, running=True)).results[Check.EVALUATED]
    assert result.examples == [f"{held.record_id}: sampled by versions [3, 4]; expected only 4"]
    dispatches = store.database["dispatched_sampling_tasks"]
    await dispatches.update_many({"turn": {"$lt": 2}}, {"$set": {"policy": "guide"}})
    assert (await audit(store, running=True)).results[Check.EVALUATED].violations == 0, "others play with their newest"
    await dispatches.update_many({}, {"$unset": {"policy": 1}})
    await store.database["tasks"].update_one({}, {"$set": {"at_version": None}})
    assert (await audit(store, running=True)).results[Check.EVALUATED].violations == 0
    failed = {
        "_id": f"{held.record_id}:9",
        "record": held.record_id,
        "turn": 9,
        "status": "failed",
    }  # its gateway was killed
    await dispatches.insert_one(failed)
    assert (await audit(store, running=True)).results[Check.EVALUATED].violations == 0
    await store.data.write_group([make_data(held.task, 0, group_size=1)])
    result = (await audit(store, running=True)).results[Check.EVALUATED]
    assert result.examples == [f"{held.record_id}: split eval, and has training data"]


async def test_an_empty_run_has_no_violation(store: Store) -> None:
    assert (await audit(store)).ok


NEXT_FLOAT = float(np.nextafter(np.float32(-0.9), np.float32(0)))


def _dispatch(index: int, **values: Any) -> Corruption:
    return "dispatched_sampling_tasks", {"_id": f"{RECORD}:{index}"}, {"$set": values}


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
    "a list of tools that is gone": (Check.TOOLS, ("tool_schemas", {"_id": SCHEMAS.id}, {})),
    "a changed list of tools": (Check.TOOLS, ("tool_schemas", {"_id": SCHEMAS.id}, {"$set": {"tools.0": "{}"}})),
    "a tool that was left out unsaid": (Check.TOOLS, ("tool_schemas", {"_id": SCHEMAS.id}, {"$set": {"tools": []}})),
    "tools that were never listed": (Check.TOOLS, _dispatch(1, tools_hash="0" * len(SCHEMAS.id))),
    "a group whose rules are not stored": (Check.RULES, ("run_rules", {"_id": "main:1"}, {})),
    "rules that were edited": (Check.RULES, ("run_rules", {"_id": "main:1"}, {"$set": {"settlement.advantage": "x"}})),
    "a changed prompt token": (Check.TOKENS, _dispatch(0, prompt_ids=pack_ints([1, 99, 3]))),
    "a changed tool token": (Check.TOKENS, _dispatch(1, prompt_ids=pack_ints([7, 99]))),
    "a changed sampled token": (Check.TOKENS, _dispatch(1, **{"response.output_ids": pack_ints([9, 11])})),
    "a log-prob that differs in its last bit": (
        Check.TOKENS,
        _dispatch(1, **{"response.output_logprobs": pack_floats([NEXT_FLOAT, -1.0])}),
    ),
    "another weight version": (Check.TOKENS, _dispatch(1, weight_versions=[(3, 2)])),
    "a reply that is gone": (Check.TOKENS, _dispatch(2, response=None)),
    "a shorter shared prefix": (Check.TOKENS, _dispatch(2, shared_length=4)),
    "a shared prefix longer than the parent": (Check.TOKENS, _dispatch(1, shared_length=60)),
    "a dispatch that is gone": (Check.TOKENS, ("dispatched_sampling_tasks", {"_id": f"{RECORD}:0"}, {})),
    "parents that go in a circle": (Check.TOKENS, _dispatch(0, parent=f"{RECORD}:1")),
    "fewer log-probs than ids": (Check.TOKENS, _dispatch(1, **{"response.output_logprobs": pack_floats([-1.0])})),
    "a tree that begins with a sampled token": (Check.TOKENS, _dispatch(0, prompt_ids=b"")),
    "another digest": (Check.TOKENS, ("record_data", {"_id": RECORD}, {"$set": {"digest": "0" * 16}})),
    "another advantage than the mean of its turns": (
        Check.ADVANTAGES,
        ("records", {"_id": RECORD}, {"$set": {"advantage": 0.5}}),
    ),
    "a group that lacks a record": (Check.GROUPS, ("record_data", {"_id": RECORD}, {})),
    "a group of another size": (Check.GROUPS, ("record_data", {"task": TASK}, {"$set": {"group_size": 3}})),
    "dropped without a reason": (Check.DROPPED, ("record_data", {"_id": RECORD}, {"$set": {"group_size": 0}})),
    "a wrong token count": (Check.SUMMARY, ("record_data", {"_id": RECORD}, {"$set": {"num_trained_tokens": 7}})),
    "a wrong oldest version": (Check.SUMMARY, ("record_data", {"_id": RECORD}, {"$set": {"min_version": 4}})),
    "a version that sampled nothing": (Check.SUMMARY, ("record_data", {"_id": RECORD}, {"$set": {"versions": [4]}})),
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
    "a step that says nothing of what it trained": (Check.ACCOUNTS, ("trained_steps", {"_id": "main:1:1"}, {})),
    "a step that trained more than it marked": (
        Check.ACCOUNTS,
        ("trained_steps", {"_id": "main:1:1"}, {"$set": {"groups": [[TASK, 3]]}}),
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
            await store.rules.add(RunRules.of("main", 1, Rules(template_digest="").sections(), "test"))
            await store.database["tasks"].update_many({}, {"$set": {"rules": 1}})
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


async def test_the_audit_finds_a_group_that_was_trained_again_after_its_marks_were_lost(store: Store) -> None:
    """Every document is in order, each for itself: the marks say [2], and step 1 knows better."""
    await whole_run(store, tasks=1)
    assert (await audit(store)).ok
    unmarked = {"trained_count": 0, "last_trained_step": None}
    lost = {"trained_steps": [], "status": DataStatus.READY.value, "claim": None}
    await store.database["records"].update_many({}, {"$set": unmarked | {"revision": 0}})
    await store.database["record_data"].update_many({}, {"$set": unmarked | lost})
    await train(store, 2)
    await announce(store, 2)
    report = await audit(store)
    assert [check for check, result in report.results.items() if result.violations] == [Check.ACCOUNTS]
    assert report.results[Check.ACCOUNTS].examples == [
        f"policy main, step 1: trained 2 records of {TASK}; 0 have its mark",
        f"policy main: steps 1, 2 trained {TASK}; expected at most 1",
    ]


async def test_steps_undone_by_a_resume_are_not_compared(store: Store) -> None:
    await whole_run(store, tasks=1)
    admission = Admission(groups_per_step=1, max_staleness=0)
    assert await store.runs.start_trainer("main", admission) == 1
    assert await store.runs.start_trainer("main", admission) == 2, "from step 0 again"
    assert (await audit(store)).results[Check.ACCOUNTS].examples == [
        f"policy main, step 1: trained 0 records of {TASK}; 2 have its mark"
    ]
    await store.data.rewind("main", 0, max_trained_count=1)
    await store.versions.withdraw_after("main", 0, 2)
    assert (await audit(store)).ok


@pytest.mark.parametrize(
    ("name", "at", "value", "check"),
    [
        ("token_ids_N", 1, 99, Check.TOKENS),
        ("token_ids_N", 7, 99, Check.TOKENS),
        ("token_ids_N", 4, 99, Check.SAMPLED),
        ("dispatches_N", 4, 1, Check.SAMPLED),
        ("logprobs_N", 3, np.nextafter(np.float32(-0.4), np.float32(0)), Check.LOGPROBS),
        ("versions_N", 8, 4, Check.VERSIONS),
        ("parents_N", 10, 5, Check.TOKENS),
    ],
)
def test_a_wrongly_assembled_tree_is_found(name: str, at: int, value: float, check: Check) -> None:
    """Also where its digest is the right one: the audit puts every prompt and reply together in its own way."""
    tree, dispatches = make_episode_tree("r", 1.0), make_dispatches("r")
    report = AuditReport("r")
    compare(report, tree, dispatches)
    assert report.ok, report
    array = getattr(tree, name).copy()
    array[at] = value
    compare(report, replace(tree, **{name: array}), dispatches)
    assert report.results[check].violations, report


def test_a_tree_with_tokens_of_no_dispatch_is_found() -> None:
    tree = make_episode_tree("r", 1.0)
    more = replace(
        tree,
        token_ids_N=np.append(tree.token_ids_N, np.int32(13)),
        parents_N=np.append(tree.parents_N, np.int32(11)),
        dispatches_N=np.append(tree.dispatches_N, np.int32(-1)),
        logprobs_N=np.append(tree.logprobs_N, np.float32(0)),
        versions_N=np.append(tree.versions_N, np.int32(-1)),
    )
    report = AuditReport("r")
    compare(report, more, make_dispatches("r"))
    assert "1 tokens of the tree lead to no dispatch's reply" in report.results[Check.TOKENS].examples[0]


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


async def test_the_limit_of_use_is_the_trainers_setting_or_the_given_one(store: Store) -> None:
    await whole_run(store, tasks=1)
    await store.database["record_data"].update_many({}, {"$set": {"status": DataStatus.READY.value}})
    await train(store, 2, max_trained_count=2)
    assert (await audit(store, newest_step=2)).results[Check.STEPS].violations == 2
    assert (await audit(store, newest_step=2, max_trained_count=2)).ok
    await set_settings(store, "trainer-main", {"max_trained_count": 2})
    assert (await audit(store, newest_step=2)).ok


async def test_data_set_aside_is_counted_by_reason(store: Store) -> None:
    records = await whole_run(store)
    await store.data.set_aside(records[2:3], DataStatus.STALE, "3 steps old; max_staleness is 2")
    await store.data.set_aside(records[3:4], DataStatus.DROPPED, "too long")
    report = await audit(store)
    assert report.ok
    assert report.set_aside == {"stale": {"3 steps old; max_staleness is 2": 1}, "dropped": {"too long": 1}}
    assert (report.counts["records stale"], report.counts["records dropped"]) == (1, 1)


async def test_a_slot_with_an_infrastructure_failure_has_no_data(store: Store) -> None:
    await store.tasks.insert_new([make_task(0, num_generations=1)])
    held = await claim(store)
    await store.records.start(held, "w")
    await store.tasks.retry_slot(held, "engine down", delay_s=0, max_failures=1)
    report = await audit(store)
    assert report.ok, report
    assert report.results[Check.FAILED].examined == 2


def test_the_builders_tree_is_valid() -> None:
    fields = data_fields(make_episode_tree("r", 1.0))
    assert (fields["num_tokens"], fields["num_trained_tokens"]) == (12, 6)


async def test_data_of_a_task_that_was_never_opened_or_is_gone_is_examined(store: Store) -> None:
    await whole_run(store)
    await store.database["tasks"].update_one({"_id": TASK}, {"$set": {"status": "created"}})
    await store.database["tasks"].delete_one({"_id": "main:train:0:t1"})
    report = await audit(store)
    assert report.counts["records with training data"] == 4
    assert report.results[Check.OWNED].violations == 2, "of the task that is gone"


async def test_training_data_whose_task_is_no_text_is_found(store: Store) -> None:
    await whole_run(store, tasks=1)
    for wrong in (None, 7, ["a"], {"a": 1}):
        await store.database["record_data"].update_one({"_id": RECORD}, {"$set": {"task": wrong}})
        assert (await audit(store)).results[Check.READABLE].violations == 1, wrong
