"""`tandem fork`: continuations of one stored turn, as a group of their own. Real tool server, real database, scripted engine."""

from typing import Any

import pytest

from sampler.core.episode.episode import play
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.kinds.mcp_sampler import MCPSampler
from shared.documents import Claim, DispatchedSamplingTask, Record, Task, TaskPayload
from shared.documents.fork import ForkOrigin
from shared.documents.packed import pack_ints, unpack_ints
from shared.documents.states import BranchCause, RecordStatus, SlotStatus, Termination
from shared.episodes.origin import queue_fork, read_origin
from shared.errors import ConfigError
from shared.store import Store
from tandem.audit.report import Check
from tandem.audit.run import audit
from tandem.what_if.forked import read_fork
from tests.sampler.scored_groups import config
from tests.sampler.settling import settle
from tests.sampler.test_mcp_sampler import NO_AGENTS, calls, episode, resources

REPLIES = [calls("add", a=2, b=3), calls("bump"), "<answer>5</answer>"]
RIGHT, WRONG = "<answer>4</answer>", "<answer>7</answer>"
ASKED = {"identity": "i", "cause": "first"}  # by an agent


async def forked(store: Store, dispatch: str, n: int = 1, **fork: Any) -> Task:
    origin = await read_origin(store, dispatch)
    sampling = {k: v for k, v in origin.dispatch.sampling_params.items() if k != "max_new_tokens"}
    wanted = ForkOrigin(dispatch=dispatch, sampling_params=sampling, **fork)
    task, _ = await queue_fork(store, origin, wanted, n, again=False)
    return task


async def claimed(store: Store, lease_s: float = 60.0) -> Claim:
    (held,) = await store.tasks.claim_slots(
        "w", policy="main", split="fork", lease_s=lease_s, seq_limit=None, max_failures=8
    )
    return held


async def played(
    store: Store, held: Claim, replies: list[str], kind: type[AsyncSampler] = MCPSampler, **options: Any
) -> tuple[Record, list[DispatchedSamplingTask], AsyncSampler, list[dict[str, Any]]]:
    async with resources(store, replies, NO_AGENTS, **options) as (shared, engines):
        sampler = kind(shared, held)
        await play(sampler)
    record = await store.records.get(held.record_id)
    assert record is not None
    return record, (await store.records.dispatches_of([record.id]))[record.id], sampler, engines.bodies()


@pytest.mark.parametrize("turn", [0, 1, 2])
async def test_a_fork_asks_with_exactly_the_ids_of_its_turn_and_goes_on_from_there(store: Store, turn: int) -> None:
    _, stored, engines = await episode(store, REPLIES, {"tools": ["add", "bump"]}, temperature=0.7)
    asked = [body["input_ids"] for body in engines.bodies()]
    task = await forked(store, stored[turn].id, earlier_calls="stateless" if turn else "none")
    record, dispatches, sampler, bodies = await played(store, await claimed(store), [calls("add", a=1, b=1), RIGHT])
    assert bodies[0]["input_ids"] == asked[turn], "the exact ids, of text and of sampled replies"
    assert bodies[0]["sampling_params"]["temperature"] == 0.7, "sampled as its origin was"
    first, second = dispatches
    assert (first.parent, unpack_ints(first.prompt_ids).tolist()) == (None, asked[turn])
    assert second.parent == first.id
    assert second.shared_length == len(asked[turn]) + len(unpack_ints(first.response.output_ids))  # type: ignore[union-attr]  # it is there
    assert second.branch_cause is BranchCause.CLEAN
    assert bodies[1]["input_ids"][: len(asked[turn])] == asked[turn]
    told = [message["role"] for message in sampler.conversation]
    assert told == ["system", "user", *["assistant", "tool"] * (turn + 1), "assistant"], "each message once"
    assert [message["role"] for message in first.messages] == ["system", "user", *["assistant", "tool"] * turn]
    assert (record.split, record.score, record.num_turns) == ("fork", 1.0, 2)
    task = await store.tasks.get(task.id) or task
    await settle(store, task, config(store, default_scorers=[]))
    assert await store.stored.with_data([record.id]) == set(), "no trainer reads it"
    report = await audit(store, running=True)
    assert report.results[Check.FORKED].examined == 1
    assert report.ok


async def test_the_audit_tells_a_fork_of_another_prompt_and_one_whose_origin_is_gone(store: Store) -> None:
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    await forked(store, stored[1].id, earlier_calls="stateless")
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT])
    found, all_dispatches = unpack_ints(dispatches[0].prompt_ids).tolist(), store.database["dispatched_sampling_tasks"]
    wrong = {"$set": {"prompt_ids": pack_ints([*found[:-1], found[-1] + 1])}}
    await all_dispatches.update_one({"_id": dispatches[0].id}, wrong)
    result = (await audit(store, running=True)).results[Check.FORKED]
    assert f"{record.id}: its first prompt" in result.examples[0]
    await all_dispatches.update_one({"_id": dispatches[0].id}, {"$set": {"prompt_ids": pack_ints(found)}})
    assert not (await audit(store, running=True)).results[Check.FORKED].violations
    await store.database["records"].delete_one({"_id": stored[0].record})
    assert "which is gone" in (await audit(store, running=True)).results[Check.FORKED].examples[0]


async def test_earlier_calls_are_made_again_and_a_result_that_differs_ends_the_slot_with_both(store: Store) -> None:
    replies = [calls("add", a=2, b=3), calls("bump"), "<answer>5</answer>"]
    _, stored, _ = await episode(store, replies, {"tools": ["add", "bump"]})
    await forked(store, stored[1].id, earlier_calls="replayed")
    record, dispatches, *_ = await played(store, await claimed(store), [calls("bump"), RIGHT])
    assert record.status is RecordStatus.SCORED, "2 + 3 is 5 again"
    assert '"n":1' in dispatches[0].tool_calls[0].result.replace(" ", "")
    task = await forked(store, stored[2].id, earlier_calls="replayed")  # a counter tells its process, which is another
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT])
    assert (record.termination, dispatches) == (Termination.MISCONFIGURED, [])
    slot = (await store.tasks.get(task.id) or task).slots[0]
    assert slot.status is SlotStatus.FAILED, "at once: another try would say the same"
    assert "bump answered" in (record.error or "")
    assert "in the origin and" in (record.error or "")


async def test_the_same_command_finds_the_same_group_and_again_makes_a_further_one(store: Store) -> None:
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    origin = await read_origin(store, stored[0].id)
    fork = ForkOrigin(dispatch=stored[0].id, sampling_params={"temperature": 1.0})
    told = [await queue_fork(store, origin, fork, 2, again=again) for again in (False, False, True)]
    assert [(task.epoch, task.seq, new) for task, new in told] == [(0, 0, True), (0, 0, False), (1, 1, True)]
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 2


async def test_a_slot_of_a_killed_sampler_is_played_by_another_one(store: Store) -> None:
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    task = await forked(store, stored[0].id)
    lost = await claimed(store, lease_s=0.0)  # killed: nothing renews the lease
    record, *_ = await played(store, await claimed(store), [RIGHT])
    assert (record.attempt, record.score) == (2, 1.0)
    assert await store.tasks.renew_leases([lost], 60) == [lost]
    ended = await store.tasks.get(task.id) or task
    found = await read_fork(store, await read_origin(store, stored[0].id), ended)
    assert (found.scores, found.continuations[0].parts_at) == ([1.0], (0, 0))


async def test_a_continuation_that_says_the_same_parts_nowhere_and_another_one_where_it_does(store: Store) -> None:
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    task = await forked(store, stored[0].id, n=2)
    await played(store, await claimed(store), list(REPLIES))
    await played(store, await claimed(store), [REPLIES[0], WRONG])
    fork = await read_fork(store, await read_origin(store, stored[0].id), await store.tasks.get(task.id) or task)
    same, other = fork.continuations
    assert same.parts_at is None
    assert other.parts_at == (1, 0), "there the origin called a tool"
    assert fork.mean is not None
    assert fork.mean.value == 0


async def test_what_cannot_be_forked_is_refused_with_the_reason(store: Store) -> None:
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    dispatches, records = store.database["dispatched_sampling_tasks"], store.database["records"]
    refusals: list[tuple[Any, str, dict[str, Any], str]] = [
        (dispatches, stored[1].id, {"thread": "b"}, "thread 'b'"),
        (dispatches, stored[2].id, {"client": ASKED}, "an agent played its episode through the gateway"),
        (dispatches, stored[1].id, {"branch_cause": "context_policy"}, "a context policy rewrote"),
        (dispatches, stored[1].id, {"parent": None, "shared_length": 0, "policy": "other"}, "turns of policy other"),
        (dispatches, stored[1].id, {"response": None}, "turn 1 has no reply"),
        (
            records,
            stored[0].record,
            {"actors": {"a": {"actor": "x", "policy": "main"}}},
            "several actors played its episode: a",
        ),
    ]
    for collection, name, change, reason in refusals:
        before = await collection.find_one({"_id": name})
        last = {"_id": stored[2].id}
        after = await dispatches.find_one(last)
        if "policy" in change or "response" in change:
            await dispatches.delete_one(last)
        await collection.update_one({"_id": name}, {"$set": change})
        with pytest.raises(ConfigError, match=reason):
            await read_origin(store, stored[1].id)
        await collection.replace_one({"_id": name}, before)
        await dispatches.replace_one(last, after or {}, upsert=True)
    await store.database["tasks"].update_one({}, {"$set": {"payload.sampler": "environment"}})
    with pytest.raises(ConfigError, match="the sampler 'environment' played its episode"):
        await forked(store, stored[0].id)
    with pytest.raises(ConfigError, match="has 3 turns, from 0; it has no turn 3"):
        await read_origin(store, f"{stored[0].record}:3")
    with pytest.raises(ConfigError, match="no dispatch 'nothing:0'"):
        await read_origin(store, "nothing:0")


class Own(MCPSampler):
    async def run(self) -> Termination:
        return Termination.ANSWERED


async def test_a_sampler_that_would_begin_anew_and_servers_with_other_tools_play_no_fork(store: Store) -> None:
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    task = await forked(store, stored[0].id, n=3)
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT], Own)
    assert dispatches == []
    assert "Own cannot go on from a turn" in (record.error or "")
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT], exclude_tools=["bump"])
    assert dispatches == []
    assert "was asked with other tools" in (record.error or "")
    await store.database["records"].delete_one({"_id": stored[0].record})
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT])
    assert dispatches == []
    assert "has no dispatch" in (record.error or "")
    assert [slot.status for slot in (await store.tasks.get(task.id) or task).slots] == [SlotStatus.FAILED] * 3


async def test_a_prompt_that_this_sampler_would_write_otherwise_is_not_asked(store: Store) -> None:
    """Another tokenizer: the ids would mean something else."""
    _, stored, _ = await episode(store, REPLIES, {"tools": ["add", "bump"]})
    found = unpack_ints(stored[0].prompt_ids).tolist()
    changed = {"$set": {"prompt_ids": pack_ints([*found[:-1], found[-1] + 1])}}
    await store.database["dispatched_sampling_tasks"].update_one({"_id": stored[0].id}, changed)
    await forked(store, stored[0].id)
    record, dispatches, *_ = await played(store, await claimed(store), [RIGHT])
    assert dispatches == []
    assert f"and {len(found) - 1} equal ones first" in (record.error or "")


def test_a_payload_without_a_fork_is_stored_as_it_was() -> None:
    assert "fork" not in TaskPayload(query="2+2?").to_mongo()
