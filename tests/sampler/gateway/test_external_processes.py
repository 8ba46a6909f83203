"""One attempt at several gateway processes: each goes on with what the others wrote."""

import asyncio
import itertools
from typing import Any

import pytest
from openai import APIStatusError

from shared.documents.states import DispatchStatus, SlotStatus
from shared.episodes.state import EpisodeState
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, trained_ids
from tests.sampler.gateway.gateways import documents, gateway, tasks, waiting
from tests.sampler.gateway.test_external import CALLS, step
from tests.sampler.running import until


@pytest.mark.parametrize("order", list(itertools.product("ab", repeat=3)))
async def test_any_process_goes_on_with_an_attempt_token_by_token(store: Store, order: tuple[str, ...]) -> None:
    await tasks(store)
    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        of = {"a": a, "b": b}
        offer = await a.claim()
        messages = list(offer["messages"])
        for name in order:
            await step(of[name].sdk(offer["api_key"]), messages)
        assert (await b.finish(offer["api_key"])).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert record.metrics == {"agent_first": 1, "agent_continued": 2}
    assert record.answer == "7"
    assert trained_ids(dispatches) == engine.exchanges
    assert [turn.kind.value for turn in EpisodeState(record, dispatches).turns] == ["root", "bridge", "bridge"]
    assert [[one.result for one in d.tool_calls] for d in dispatches] == [["3"], ["3"], []]
    assert all(d.finished_at is not None for d in dispatches)


async def test_a_reply_of_another_process_that_equals_an_earlier_one_is_not_taken_for_it(store: Store) -> None:
    """Without that reply, the messages that are new look like a repetition of the thread."""
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0])
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        for one in (a, a, b, a):
            await step(one.sdk(offer["api_key"]), messages)
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert record.metrics == {"agent_first": 1, "agent_continued": 3}
    assert trained_ids(dispatches) == engine.exchanges
    assert [turn.kind.value for turn in EpisodeState(record, dispatches).turns] == ["root", *["bridge"] * 3]


async def test_parallel_conversations_at_two_processes_lose_and_double_no_turn(store: Store) -> None:
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0], 0.02)
    async with gateway(store, engine, max_turns=30) as a, gateway(store, engine, max_turns=30) as b:
        offer = await a.claim()

        async def talk(name: str) -> None:
            messages = [{"role": "user", "content": f"I am {name}."}]
            for at in range(4):
                await step((a, b)[(at + int(name)) % 2].sdk(offer["api_key"]), messages)

        await asyncio.gather(*(talk(str(number)) for number in range(6)))
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert [d.turn for d in dispatches] == list(range(24))
    assert {d.status for d in dispatches} == {DispatchStatus.COMPLETED}
    ours = sorted(trained_ids(dispatches))
    assert ours == sorted(engine.exchanges)
    kinds = [turn.kind.value for turn in EpisodeState(record, dispatches).turns]
    assert kinds.count("bridge") == 18
    assert record.metrics["agent_continued"] == 18


async def test_requests_at_once_learn_together_what_another_process_did(store: Store) -> None:
    """The first finds its number taken; the next number is free, but the second must not use it without knowing the turn."""
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0])
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(b.sdk(offer["api_key"]), messages)
        await step(a.sdk(offer["api_key"]), messages)
        sdk = b.sdk(offer["api_key"])
        drafts = [[*messages, {"role": "user", "content": f"Draft {k}."}] for k in range(3)]
        await asyncio.gather(*(step(sdk, draft) for draft in drafts))
        await a.finish(offer["api_key"], score=1)
    record, dispatches = await documents(store, offer["record"])
    turns = EpisodeState(record, dispatches).turns
    assert all(turn.shared >= turns[1].length for turn in turns[2:])


async def test_a_client_that_leaves_uses_its_number_up(store: Store) -> None:
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as a, gateway(store, engine) as b:
        offer = await a.claim()
        async with waiting(step(a.sdk(offer["api_key"]), [{"role": "user", "content": "left"}]), slow):
            pass
        await slow.aborted.wait()
        await until(
            lambda: documents(store, offer["record"]), lambda found: found[1][0].finished_at
        )  # until then b sees a request that waits
        await step(b.sdk(offer["api_key"]), list(offer["messages"]))
        assert (await b.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert [d.status.value for d in dispatches] == ["cancelled", "completed"]
    assert record.metrics == {"agent_cancelled": 1, "agent_first": 1}


async def test_a_request_is_sent_again_to_another_process_after_its_own_was_killed(store: Store) -> None:
    """The reply that the killed process had asked for never comes; the one sent again continues the conversation."""
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as killed, gateway(store, engine) as other:
        offer = await killed.claim()
        messages = list(offer["messages"])
        async with waiting(step(killed.sdk(offer["api_key"]), messages), slow):
            killed.is_killed()
            for _ in range(2):  # the first: the very request that waits there
                await step(other.sdk(offer["api_key"]), messages)
            done = (await other.finish(offer["api_key"], score=1)).json()
        assert done["status"] == "scored"
    _, dispatches = await documents(store, offer["record"])
    assert [d.status.value for d in dispatches] == ["failed", "completed", "completed"]
    assert trained_ids(dispatches) == engine.exchanges[:2]


async def test_an_agent_that_goes_on_without_a_lost_reply_gets_no_score(store: Store) -> None:
    await tasks(store)
    engine, slow = ScriptedEngine(CALLS), ScriptedEngine(["never"], delay_s=3600)
    async with gateway(store, slow) as killed, gateway(store, engine) as other:
        offer = await killed.claim()
        async with waiting(step(killed.sdk(offer["api_key"]), [{"role": "user", "content": "lost"}]), slow):
            killed.is_killed()
            await step(other.sdk(offer["api_key"]), list(offer["messages"]))
            done = (await other.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["score"]) == ("failed", None)
        assert "never answered" in done["error"]
    task = await store.tasks.get((await documents(store, offer["record"]))[0].task)
    assert task is not None
    assert (task.slots[0].status, task.slots[0].failures) == (SlotStatus.OPEN, 1)


async def test_a_retry_of_a_request_whose_reply_got_lost_gets_that_reply(store: Store) -> None:
    """Written, and then the process ended before the client was told."""
    await tasks(store)
    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as a, gateway(store, engine) as b:
        offer = await a.claim()
        first = await step(a.sdk(offer["api_key"]), list(offer["messages"]))
        again = await step(
            b.sdk(offer["api_key"]), list(offer["messages"]), extra_headers={"x-stainless-retry-count": "1"}
        )
        assert (again.id, again.choices[0].message) == (first.id, first.choices[0].message)
        await b.finish(offer["api_key"], score=1)
    _, dispatches = await documents(store, offer["record"])
    assert len(dispatches) == len(engine.exchanges) == 1


async def test_a_failed_request_is_remembered_by_every_process(store: Store) -> None:
    await tasks(store)

    class Broken(ScriptedEngine):
        async def __call__(self, request: Any) -> Any:
            raise RuntimeError("no engine")

    engine = ScriptedEngine(CALLS)
    async with gateway(store, engine) as a, gateway(store, Broken([]), engine_timeout_s=0.5) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        with pytest.raises(APIStatusError):
            await step(b.sdk(offer["api_key"]), [{"role": "user", "content": "fails"}])
        done = (await a.finish(offer["api_key"], score=1)).json()
        assert (done["status"], done["score"]) == ("failed", None)
