"""Agents that run elsewhere, at several gateways: requests asked twice, scores and limits that another process knows of."""

import asyncio
from typing import Any

import pytest
from openai import APIStatusError

from sampler.gateway import attempt
from shared.documents.states import DispatchStatus
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

        one.service._store.sessions.save_reply = slow  # type: ignore[method-assign]  # replaced for this test
        asking = asyncio.create_task(step(one.sdk(offer["api_key"]), list(messages)))
        await saved.wait()
        asking.cancel()
        await asyncio.wait([asking])
        while one.service._attempts.busy:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
        one.service._store.sessions.save_reply = save  # type: ignore[method-assign]  # replaced for this test
        again = await step(one.sdk(offer["api_key"]), messages, extra_headers={"x-stainless-retry-count": "1"})
        assert again.id.endswith("-1")
        await step(one.sdk(offer["api_key"]), messages)
        done = (await one.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["error"]) == ("scored", None)
    _, dispatches = await documents(store, offer["record"])
    assert trained_ids(dispatches) == engine.exchanges
    assert len(engine.exchanges) == 3


async def test_scores_that_are_no_float_are_refused(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        offer = await one.claim()
        for score in ("1" + "0" * 400, "1e999", "NaN"):
            answer = await one.http.post(
                "/score", content=f'{{"score": {score}}}', headers={"x-api-key": offer["api_key"]}
            )
            assert answer.status_code == 400, answer.text


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


async def test_a_request_that_may_pass_is_asked_again_by_its_sdk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as a, gateway(store, ScriptedEngine(CALLS)) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        for one in (b, a):
            await step(one.sdk(offer["api_key"]), messages)
        monkeypatch.setattr(attempt, "MOST_RELOADS", 1)
        await step(b.sdk(offer["api_key"], max_retries=1), messages)
        assert (await b.finish(offer["api_key"], score=1)).json()["status"] == "scored"


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

        store.sessions.open_turn = slow  # type: ignore[method-assign]  # replaced for this test
        first = asyncio.create_task(step(b.sdk(offer["api_key"]), list(messages)))
        await reached.wait()
        await step(a.sdk(offer["api_key"]), messages, extra_headers={"x-stainless-retry-count": "1"})
        repeated.set()
        with pytest.raises(APIStatusError, match="sent this request again"):
            await first
        store.sessions.open_turn = open_turn  # type: ignore[method-assign]  # replaced for this test
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    _, dispatches = await documents(store, offer["record"])
    assert trained_ids(dispatches) == engine.exchanges
    assert late.exchanges == []
