"""The end of an attempt that runs elsewhere: what its process knows is not read again, and what another process did is."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from openai import APIStatusError

from sampler.gateway.external_sampler import ExternalSampler
from sampler.scorers import Score
from shared.documents import Claim
from shared.documents.agent_sessions import ClientRequest
from shared.documents.states import OVER, DispatchStatus, SlotStatus
from shared.store import Store
from shared.store.sessions import Opened
from tandem.audit.run import Check, audit
from tests.sampler.gateway.agents import ScriptedEngine, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks, waiting
from tests.sampler.gateway.test_external import CALLS, step


async def test_an_attempt_that_this_process_knows_is_read_at_no_point(store: Store) -> None:
    """From its claim to its end; the record is, since it says how the attempt ended."""
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        await store.database.command("profile", 2)
        offer = await one.claim()
        messages = list(offer["messages"])
        for _ in CALLS:
            await step(one.sdk(offer["api_key"]), messages)
        assert (await one.finish(offer["api_key"])).json()["status"] == "scored"
        await store.database.command("profile", 0)
    record, dispatches = await documents(store, offer["record"])
    assert (record.answer, record.metrics) == ("7", {"agent_first": 1, "agent_continued": 2})
    assert all(d.finished_at is not None for d in dispatches)
    found = store.database["system.profile"].find({"ns": f"{store.database.name}.dispatched_sampling_tasks"})
    reads = [each["command"]["filter"] async for each in found if each["op"] == "query"]
    assert [read for read in reads if "record" in read] == [], "all turns"
    assert {"_id": f"{offer['record']}:3"} in reads, "whether another process added one"


@pytest.mark.parametrize("order", ["ab", "aab", "ba", "bba", "abaab"])
async def test_an_end_knows_the_turns_of_every_process(store: Store, order: str) -> None:
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0])
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        for name in order:
            await step({"a": a, "b": b}[name].sdk(offer["api_key"]), messages)
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert record.traj == [d.id for d in dispatches]
    assert (record.num_turns, record.metrics["agent_continued"]) == (len(order), len(order) - 1)
    assert all(d.finished_at is not None for d in dispatches)


async def test_an_end_knows_that_another_process_asked_for_a_turn(store: Store) -> None:
    """A request that was never answered, as that of a killed process: the attempt is not whole."""
    await tasks(store)
    engine, slow = ScriptedEngine(lambda prompt: CALLS[0]), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as killed, gateway(store, engine) as other:
        offer = await killed.claim()
        messages = list(offer["messages"])
        await step(other.sdk(offer["api_key"]), messages)
        async with waiting(step(killed.sdk(offer["api_key"]), [{"role": "user", "content": "lost"}]), slow):
            killed.is_killed()
            await step(other.sdk(offer["api_key"]), messages)
            done = (await other.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["score"]) == ("failed", None)


@pytest.mark.parametrize("body", [{"answer": "7"}, {"error": "the SDK raised"}])
async def test_a_limit_that_a_request_met_ends_the_episode_at_every_process(store: Store, body: dict[str, Any]) -> None:
    await tasks(store)
    async with (
        gateway(store, ScriptedEngine(CALLS), max_turns=1) as a,
        gateway(store, ScriptedEngine(CALLS), max_turns=1) as b,
    ):
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        with pytest.raises(APIStatusError, match="max_turns"):
            await step(a.sdk(offer["api_key"]), messages)
        done = (await b.finish(offer["api_key"], **body)).json()
        assert (done["status"], done["termination"]) == ("scored", "turns_limit")


async def test_an_attempt_that_ended_elsewhere_leaves_its_place(store: Store) -> None:
    await tasks(store, 2)
    options = {"max_concurrent_episodes": 1, "renew_s": 0.2}
    async with gateway(store, ScriptedEngine(CALLS), **options) as a, gateway(store, ScriptedEngine(CALLS)) as b:
        offer = await a.claim()
        await step(a.sdk(offer["api_key"]), list(offer["messages"]))
        await b.finish(offer["api_key"], score=1)
        assert (await a.claim(wait_s=30))["record"] != offer["record"]


@pytest.mark.parametrize("waits", [False, True])
async def test_an_end_that_a_process_did_not_live_to_finish_is_finished_by_the_next(store: Store, waits: bool) -> None:
    """The record is written, and the slot is not."""
    await tasks(store)
    options: dict[str, Any] = {"feedback_deadline_s": 600.0} if waits else {}
    async with (
        gateway(store, ScriptedEngine(CALLS), **options) as a,
        gateway(store, ScriptedEngine([]), **options) as b,
    ):
        offer = await a.claim()
        await step(a.sdk(offer["api_key"]), list(offer["messages"]))

        async def killed(*_: Any, **__: Any) -> bool:
            cast("asyncio.Task[Any]", asyncio.current_task()).cancel()
            await asyncio.sleep(60)
            return False

        tasks_of_a = a.service._store.tasks
        for name in ("finish_slot", "await_feedback"):
            setattr(tasks_of_a, name, killed)
        assert (await a.finish(offer["api_key"], answer="7")).status_code == 500
        for name in ("finish_slot", "await_feedback"):
            delattr(tasks_of_a, name)
        status = "completed" if waits else "scored"
        assert (await b.finish(offer["api_key"], answer="7")).json()["status"] == status
    task = await store.tasks.get((await documents(store, offer["record"]))[0].task)
    assert task is not None
    assert task.slots[0].status is (SlotStatus.WAITING if waits else SlotStatus.SCORED)


async def test_a_stop_in_the_middle_of_scoring_leaves_the_end_to_another_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks(store)
    scoring, evaluate = asyncio.Event(), ExternalSampler.evaluate_record

    async def slow(sampler: ExternalSampler) -> Score:
        if not scoring.is_set():
            scoring.set()
            await asyncio.sleep(3600)
        return await evaluate(sampler)

    monkeypatch.setattr(ExternalSampler, "evaluate_record", slow)
    async with gateway(store, ScriptedEngine(CALLS)) as b:
        async with gateway(store, ScriptedEngine(CALLS)) as a:
            offer = await a.claim()
            await step(a.sdk(offer["api_key"]), list(offer["messages"]))
            finishing = asyncio.create_task(a.finish(offer["api_key"], score=1))
            await scoring.wait()
        assert (await finishing).status_code == 500
        done = (await b.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["score"]) == ("scored", 1.0)


async def test_an_end_that_is_sent_again_is_scored_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await tasks(store)
    scored, evaluate = [], ExternalSampler.evaluate_record

    async def slow(sampler: ExternalSampler) -> Score:
        scored.append(sampler)
        await asyncio.sleep(0.3)
        return await evaluate(sampler)

    monkeypatch.setattr(ExternalSampler, "evaluate_record", slow)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        done = await asyncio.gather(*(one.finish(offer["api_key"], score=score) for score in (1, 1, 1)))
    assert [answer.json()["score"] for answer in done] == [1, 1, 1]
    assert len(scored) == 1


async def test_an_end_that_comes_while_leases_are_renewed_is_scored_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt was quiet before, and is over when the renewal asks for it."""
    await tasks(store)
    scored, scoring, may_score, evaluate = [], asyncio.Event(), asyncio.Event(), ExternalSampler.evaluate_record

    async def slow(sampler: ExternalSampler) -> Score:
        scored.append(sampler)
        scoring.set()
        await may_score.wait()
        return await evaluate(sampler)

    monkeypatch.setattr(ExternalSampler, "evaluate_record", slow)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        over, ends = store.sessions.over, []

        async def late(record_ids: Sequence[str]) -> set[str]:
            ends.append(asyncio.create_task(one.finish(offer["api_key"], score=1)))
            await scoring.wait()
            return await over(record_ids)

        monkeypatch.setattr(store.sessions, "over", late)
        await one.service._attempts.renew()
        monkeypatch.setattr(store.sessions, "over", over)
        ends.append(asyncio.create_task(one.finish(offer["api_key"], score=1)))
        await asyncio.sleep(0.5)  # in which the second end would be played too
        may_score.set()
        assert [(await end).json()["score"] for end in ends] == [1, 1]
    assert len(scored) == 1


async def test_an_end_shortly_before_the_end_of_a_lease_is_scored_under_a_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tasks(store)
    lease_ends, evaluate = [], ExternalSampler.evaluate_record

    async def note_lease(claim: Claim) -> None:
        task = await store.tasks.get(claim.task.id)
        assert task is not None
        lease_ends.append(task.slots[0].free_at)

    async def seen(sampler: ExternalSampler) -> Score:
        await note_lease(sampler.claim)
        return await evaluate(sampler)

    monkeypatch.setattr(ExternalSampler, "evaluate_record", seen)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        attempt = await one.service.attempt_of(offer["api_key"])
        assert attempt is not None
        await store.tasks.renew_leases([attempt.claim], 20.0)
        await note_lease(attempt.claim)
        assert (await one.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    short, scored = lease_ends
    assert (scored - short).total_seconds() > 500


async def test_a_request_that_came_while_the_attempt_ended_keeps_no_episode_from_training(store: Store) -> None:
    """Its process wrote it, and was killed before it saw that the attempt had ended."""
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        _, (asked,) = await documents(store, offer["record"])
        finish = one.service._store.tasks.finish_slot

        async def late(claim: Claim, score: float, *group_scorers: Any) -> bool:
            client = ClientRequest(identity="late", cause="other", requested_by="another")
            values = {"id": f"{offer['record']}:1", "turn": 1, "response": None, "finished_at": None, "client": client}
            request = asked.model_copy(update={**values, "status": DispatchStatus.RUNNING, "weight_versions": []})
            assert await store.sessions.open_turn(request) is Opened.ENDED
            return await finish(claim, score, *group_scorers)

        one.service._store.tasks.finish_slot = late  # type: ignore[method-assign]  # replaced for this test
        await one.finish(offer["api_key"], score=1)
    task = await store.tasks.get(asked.record.rsplit(":", 2)[0])
    assert task is not None
    assert task.status in OVER
    assert await store.malformed.all() == []
    report = await audit(store)
    assert not report.results[Check.COMPLETE].violations
    assert report.results[Check.COMPLETE].examined == 1


async def test_a_request_that_runs_at_another_process_when_the_attempt_ends_is_no_part_of_it(store: Store) -> None:
    """Its process cancels it: the agent does not want it any more, and no reply is lost."""
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, engine) as a, gateway(store, slow) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        asking = asyncio.create_task(step(b.sdk(offer["api_key"]), list(messages)))
        await slow.asked.wait()
        done = (await a.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["error"]) == ("scored", None)
        with pytest.raises(APIStatusError, match="has ended"):
            await asking
    _, dispatches = await documents(store, offer["record"])
    assert [d.status for d in dispatches] == [DispatchStatus.COMPLETED, DispatchStatus.CANCELLED]
    assert trained_ids(dispatches) == engine.exchanges
    assert (await audit(store)).ok
