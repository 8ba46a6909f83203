"""Agents that run elsewhere, at several gateways: requests asked twice, scores and limits that another process knows of."""

import asyncio
from typing import Any

import pytest
from openai import APIStatusError

from sampler.gateway import attempts
from sampler.gateway.external_sampler import ExternalSampler
from sampler.gateway.harness_api import POLL_S
from sampler.scorers import Score
from shared.audit.run import Check, audit
from shared.documents import Claim
from shared.documents.agent_sessions import ClientRequest
from shared.documents.states import OVER, DispatchStatus, SlotStatus
from shared.store import Store
from shared.store.sessions import Opened
from tests.sampler.gateway.agents import ScriptedEngine, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks, waiting
from tests.sampler.gateway.test_external import CALLS, step


@pytest.mark.parametrize("headers", [{}, {"x-stainless-retry-count": "1"}])
async def test_a_killed_request_that_continued_a_conversation_is_sent_again_and_scored(
    store: Store, headers: dict[str, str]
) -> None:
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as killed, gateway(store, engine) as other:
        offer = await killed.claim()
        messages = list(offer["messages"])
        await step(other.sdk(offer["api_key"]), messages)
        async with waiting(step(killed.sdk(offer["api_key"]), list(messages)), slow):
            killed.is_killed()
            for _ in range(2):  # the first: the very request that waits there
                await step(other.sdk(offer["api_key"]), messages, extra_headers=headers)
            done = (await other.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["error"]) == ("scored", None)
    _, dispatches = await documents(store, offer["record"])
    assert trained_ids(dispatches) == engine.exchanges
    assert dispatches[1].status is (DispatchStatus.CANCELLED if headers else DispatchStatus.FAILED)


async def test_two_samples_of_one_request_at_two_processes_both_count(store: Store) -> None:
    await tasks(store)
    first, late = ScriptedEngine(CALLS), ScriptedEngine(["one"], delay_s=1.5)
    async with gateway(store, first) as a, gateway(store, late) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        asking = asyncio.create_task(step(b.sdk(offer["api_key"]), list(messages)))
        await late.asked.wait()
        await step(a.sdk(offer["api_key"]), messages)
        await asking
        await step(a.sdk(offer["api_key"]), messages)
        done = (await b.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["error"]) == ("scored", None)
    _, dispatches = await documents(store, offer["record"])
    assert {d.status for d in dispatches} == {DispatchStatus.COMPLETED}
    assert sorted(trained_ids(dispatches)) == sorted(first.exchanges + late.exchanges)


async def test_a_turn_is_scored_at_a_process_that_has_not_seen_it(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as a, gateway(store, ScriptedEngine(CALLS)) as b:
        offer = await a.claim()
        key, messages, turns = {"x-api-key": offer["api_key"]}, list(offer["messages"]), []
        for one in (a, b):
            turns.append((await step(one.sdk(offer["api_key"]), messages)).id.removeprefix("chatcmpl-"))
        for one, turn, score in ((a, 0, 0.25), (a, 1, 0.5), (b, 0, 0.75), (a, 1, 0.125)):
            answer = await one.http.post("/score", json={"score": score, "turn": turns[turn]}, headers=key)
            assert answer.status_code == 200, answer.text
        for turn in (f"{turns[0]}0", "x", turns[0].replace("-0", "-00")):
            answer = await a.http.post("/score", json={"score": 1, "turn": turn}, headers=key)
            assert answer.status_code == 400, answer.text
        await b.finish(offer["api_key"], score=1)
        answer = await a.http.post("/score", json={"score": 9, "turn": turns[0]}, headers=key)
        assert answer.status_code == 401, answer.text
    _, dispatches = await documents(store, offer["record"])
    assert [d.score for d in dispatches] == [0.75, 0.125]


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


async def test_a_task_whose_harness_left_while_it_waited_is_claimed_by_another(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        asked, may_claim, claimed, claim = asyncio.Event(), asyncio.Event(), asyncio.Event(), one.service._claim

        async def late() -> Claim | None:
            asked.set()
            await may_claim.wait()
            while (found := await claim()) is None:  # noqa: ASYNC110 - of another process, too
                await asyncio.sleep(0.05)
            claimed.set()
            return found

        one.service._claim = late  # type: ignore[method-assign]  # a database that answers late
        waiting = asyncio.create_task(one.claim(wait_s=30))
        await asked.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(0.3)  # until the server has read that the client is gone
        may_claim.set()
        await claimed.wait()
        offer = await one.claim(wait_s=20)
    task = await store.tasks.get((await documents(store, offer["record"]))[0].task)
    assert task is not None
    assert (task.slots[0].attempt, task.slots[0].failures) == (2, 0)


async def test_a_reply_that_was_written_as_its_client_left_is_a_turn(store: Store) -> None:
    """The thread goes on behind it, or else the documents would have two turns in one place."""
    await tasks(store)
    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as one:
        offer = await one.claim()
        messages = list(offer["messages"])
        await step(one.sdk(offer["api_key"]), messages)
        save, saved = store.sessions.save_reply, asyncio.Event()

        async def slow(dispatch: Any) -> bool:
            found = await save(dispatch)
            saved.set()
            await asyncio.sleep(0.5)  # the database's answer is late
            return found

        one.service._store.sessions.save_reply = slow  # type: ignore[method-assign]
        asking = asyncio.create_task(step(one.sdk(offer["api_key"]), list(messages)))
        await saved.wait()
        asking.cancel()
        await asyncio.wait([asking])
        while one.service._attempts.busy:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
        one.service._store.sessions.save_reply = save  # type: ignore[method-assign]
        again = await step(one.sdk(offer["api_key"]), messages, extra_headers={"x-stainless-retry-count": "1"})
        assert again.id.endswith("-1")
        await step(one.sdk(offer["api_key"]), messages)
        done = (await one.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["error"]) == ("scored", None)
    _, dispatches = await documents(store, offer["record"])
    assert trained_ids(dispatches) == engine.exchanges
    assert len(engine.exchanges) == 3


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
            raise asyncio.CancelledError

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


async def test_scores_that_are_no_float_are_refused(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        for score in ("1" + "0" * 400, "1e999", "NaN"):
            answer = await one.http.post(
                "/score", content=f'{{"score": {score}}}', headers={"x-api-key": offer["api_key"]}
            )
            assert answer.status_code == 400, answer.text


async def test_claims_at_once_exceed_no_limit_of_attempts(store: Store) -> None:
    await tasks(store, 8)
    async with gateway(store, ScriptedEngine(CALLS), max_concurrent_episodes=2) as one:
        await one.claim(wait_s=30)
        answers = await asyncio.gather(*(one.http.post("/claim", json={}) for _ in range(6)))
        assert sorted(answer.status_code for answer in answers) == [200, *[503] * 5]


async def test_a_process_that_learns_of_an_attempt_asks_the_engine_that_has_its_cache(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as a, gateway(store, ScriptedEngine(CALLS)) as b:
        offer = await a.claim()
        await step(a.sdk(offer["api_key"]), list(offer["messages"]))
        attempt = await b.service.attempt_of(offer["api_key"])
        assert attempt is not None
        session = await attempt._session()
        (view,) = session.sampler._threads._views.values()
        _, (dispatch,) = await documents(store, offer["record"])
        assert view.affinity == {"": dispatch.service}


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


async def test_a_request_that_came_while_the_attempt_ended_keeps_no_episode_from_training(store: Store) -> None:
    """Its process wrote it, and was killed before it saw that the attempt had ended."""
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        await step(one.sdk(offer["api_key"]), list(offer["messages"]))
        _, (asked,) = await documents(store, offer["record"])
        finish = one.service._store.tasks.finish_slot

        async def late(claim: Claim, score: float) -> bool:
            client = ClientRequest(identity="late", cause="other", asked_by="another")
            values = {"id": f"{offer['record']}:1", "turn": 1, "response": None, "finished_at": None, "client": client}
            request = asked.model_copy(update={**values, "status": DispatchStatus.RUNNING, "weight_versions": []})
            assert await store.sessions.open_turn(request) is Opened.ENDED
            return await finish(claim, score)

        one.service._store.tasks.finish_slot = late  # type: ignore[method-assign]
        await one.finish(offer["api_key"], score=1)
    task = await store.tasks.get(asked.record.rsplit(":", 2)[0])
    assert task is not None
    assert task.status in OVER
    assert await store.malformed.all() == []
    report = await audit(store)
    assert not report.results[Check.COMPLETE].violations
    assert report.results[Check.COMPLETE].examined == 1


async def test_a_request_that_may_pass_is_asked_again_by_its_sdk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as a, gateway(store, ScriptedEngine(CALLS)) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        for one in (b, a):
            await step(one.sdk(offer["api_key"]), messages)
        monkeypatch.setattr(attempts, "MOST_RELOADS", 1)
        await step(b.sdk(offer["api_key"], max_retries=1), messages)
        assert (await b.finish(offer["api_key"], score=1)).json()["status"] == "scored"


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


async def test_clients_that_wait_for_a_task_ask_the_database_one_at_a_time(store: Store) -> None:
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        claim, asked = one.service._claim, [0]

        async def counted() -> Claim | None:
            asked[0] += 1
            return await claim()

        one.service._claim = counted  # type: ignore[method-assign]
        waiting = [asyncio.create_task(one.claim(wait_s=60)) for _ in range(40)]
        while asked[0] < 45:  # 40 at once, then the first of the line  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
        before, at = asked[0], asyncio.get_running_loop().time()
        await asyncio.sleep(1.5)
        periods = (asyncio.get_running_loop().time() - at) / POLL_S
        assert asked[0] - before <= periods + 1
        await tasks(store, 40)
        offers = await asyncio.gather(*waiting)
    assert len({offer["record"] for offer in offers}) == 40


async def test_a_client_that_waits_no_longer_leaves_the_line_to_the_others(store: Store) -> None:
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        first = asyncio.create_task(one.claim(wait_s=60))
        await asyncio.sleep(0.5)
        late = [asyncio.create_task(one.http.post("/claim", json={"wait_s": 0.2})) for _ in range(3)]
        assert [(await answer).status_code for answer in late] == [503] * 3
        last = asyncio.create_task(one.claim(wait_s=60))
        await asyncio.sleep(0.5)
        first.cancel()
        await asyncio.wait([first])
        await tasks(store)
        assert (await last)["record"]


async def test_a_request_that_is_sent_again_while_the_first_still_runs_takes_its_place(store: Store) -> None:
    """At the same process: the client has left, and the process has not read that yet."""
    await tasks(store)
    engine = ScriptedEngine([CALLS[0], CALLS[1], *CALLS[1:]])
    async with gateway(store, engine) as one:
        offer = await one.claim()
        messages = list(offer["messages"])
        await step(one.sdk(offer["api_key"]), messages)
        engine._delay_s, engine.asked = 3600.0, asyncio.Event()
        first = asyncio.create_task(step(one.sdk(offer["api_key"]), list(messages)))
        await engine.asked.wait()
        engine._delay_s = 0.0
        await step(one.sdk(offer["api_key"]), messages, extra_headers={"x-stainless-retry-count": "1"})
        await asyncio.wait([first], timeout=60)
        assert first.done()
        assert "sent this request again" in str(first.exception())
        await step(one.sdk(offer["api_key"]), messages)
        assert (await one.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    statuses = [DispatchStatus.COMPLETED, DispatchStatus.CANCELLED, DispatchStatus.COMPLETED, DispatchStatus.COMPLETED]
    assert [d.status for d in dispatches] == statuses
    assert record.metrics["agent_continued"] == 2, "it continued the conversation, instead of a thread of its own"


async def test_a_request_that_comes_just_after_its_own_repetition_is_not_sampled(store: Store) -> None:
    """Both processes read the attempt at the same time; the repetition is written first."""
    await tasks(store)
    engine, late = ScriptedEngine(CALLS), ScriptedEngine(["late"])
    async with gateway(store, engine) as a, gateway(store, late) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        open_turn, repeated, reached = store.sessions.open_turn, asyncio.Event(), asyncio.Event()

        async def slow(dispatch: Any, closing: Any = ()) -> Opened:
            if not dispatch.client.again:
                reached.set()
                await repeated.wait()
            return await open_turn(dispatch, closing)

        store.sessions.open_turn = slow  # type: ignore[method-assign]
        first = asyncio.create_task(step(b.sdk(offer["api_key"]), list(messages)))
        await reached.wait()
        await step(a.sdk(offer["api_key"]), messages, extra_headers={"x-stainless-retry-count": "1"})
        repeated.set()
        with pytest.raises(APIStatusError, match="sent this request again"):
            await first
        store.sessions.open_turn = open_turn  # type: ignore[method-assign]
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    _, dispatches = await documents(store, offer["record"])
    assert trained_ids(dispatches) == engine.exchanges
    assert late.exchanges == []
