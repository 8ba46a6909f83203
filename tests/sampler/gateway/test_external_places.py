"""An attempt has one place of all gateways' `max_concurrent_episodes`, and one slot: at the process that served it last."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shared.documents.states import SlotStatus
from shared.store import Store
from tandem.commands.metrics import figures
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.gateways import Gateway, documents, gateway, tasks
from tests.sampler.gateway.test_external import CALLS, step
from tests.sampler.running import until

ONE = {"max_concurrent_episodes": 1, "renew_s": 0.2, "heartbeat_s": 0.2}


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda prompt: CALLS[0])


async def worker_of(store: Store, record_id: str) -> str | None:
    record, _ = await documents(store, record_id)
    task = await store.tasks.get(record.task)
    assert task is not None
    (slot,) = task.slots
    assert slot.status is SlotStatus.LEASED
    return slot.worker


def places(*gateways: Gateway) -> Callable[[], Awaitable[list[int]]]:
    async def found() -> list[int]:
        return [one.service._attempts.places for one in gateways]

    return found


async def test_an_attempt_that_another_process_serves_has_its_place_there(store: Store) -> None:
    await tasks(store, 3)
    async with gateway(store, engine(), **ONE) as a, gateway(store, engine(), **ONE) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        assert (await a.http.post("/claim", json={})).status_code == 503
        await step(a.sdk(offer["api_key"]), messages)
        await step(b.sdk(offer["api_key"]), messages)
        assert await worker_of(store, offer["record"]) == b.service._worker
        assert (await b.http.post("/claim", json={})).status_code == 503, "its place is taken"
        second = await a.claim(wait_s=60)
        assert second["record"] != offer["record"]
        assert await until(places(a, b), lambda found: found == [1, 1])
        await until(lambda: figures(store), lambda told: told["attempts_known"] == 2)
        assert await store.questions.slots_to_play("main", 3) == {"open": 1, "leased": 2, "at_gateways": 2}
        await a.finish(offer["api_key"], score=1)
        assert (await b.claim(wait_s=60))["record"] not in (offer["record"], second["record"])


async def test_an_answer_of_the_database_from_before_the_attempt_was_taken_does_not_take_its_place_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked while the renewal was on its way, it said, rightly then, that the other process had the slot."""
    await tasks(store, 1)
    async with gateway(store, engine(), **ONE) as a, gateway(store, engine(), **ONE | {"renew_s": 50}) as b:
        offer = await a.claim()
        asked_at = []
        renew = b.service._resources.store.tasks.renew_leases

        async def renewed(*arguments: Any, **options: Any) -> Any:
            asked_at.append(time.monotonic())
            return await renew(*arguments, **options)

        monkeypatch.setattr(b.service._resources.store.tasks, "renew_leases", renewed)
        await step(b.sdk(offer["api_key"]), list(offer["messages"]))
        (attempt,) = b.service._attempts._attempts.values()
        attempt.is_held(False, queried_at=asked_at[-1])
        assert attempt.has_place
        attempt.is_held(False, queried_at=time.monotonic())
        assert not attempt.has_place


async def test_an_attempt_that_comes_back_to_its_process_takes_its_place_again(store: Store) -> None:
    await tasks(store, 2)
    async with gateway(store, engine(), **ONE) as a, gateway(store, engine(), **ONE) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        for one, found in ((b, [0, 1]), (a, [1, 0]), (b, [0, 1]), (a, [1, 0])):
            await step(one.sdk(offer["api_key"]), messages)
            assert await worker_of(store, offer["record"]) == one.service._worker
            assert await until(places(a, b), lambda told, found=found: told == found)
        assert (await a.http.post("/claim", json={})).status_code == 503
        assert (await b.claim(wait_s=60))["record"] != offer["record"]


async def test_a_key_whose_attempt_has_ended_takes_no_place(store: Store) -> None:
    await tasks(store, 2)
    async with gateway(store, engine(), **ONE | {"renew_s": 50}) as a, gateway(store, engine(), **ONE) as b:
        offer = await b.claim()
        await step(b.sdk(offer["api_key"]), list(offer["messages"]))
        await b.finish(offer["api_key"], score=1)
        key = {"authorization": f"Bearer {offer['api_key']}"}
        for path in ("/heartbeat", "/score"):
            assert (await a.http.post(path, json={"score": 1}, headers=key)).status_code == 401
        assert a.service._attempts.places == 0
        assert (await a.claim())["record"] != offer["record"]


async def test_replays_at_every_process_are_counted_once_each(store: Store) -> None:
    """As they are for agents that a sampler runs."""
    await tasks(store)
    again = {"x-stainless-retry-count": "1"}
    async with gateway(store, engine()) as a, gateway(store, engine()) as b:
        offer = await a.claim()
        messages = list(offer["messages"])
        first = await step(a.sdk(offer["api_key"]), list(messages))
        for one in (a, b, b):
            told = await step(one.sdk(offer["api_key"]), list(messages), extra_headers=again)
            assert told.id == first.id
        await step(b.sdk(offer["api_key"]), [*messages, {"role": "user", "content": "And now?"}])
        await asyncio.gather(
            *(step(a.sdk(offer["api_key"]), list(messages), extra_headers=again) for _ in range(3)),
        )
        assert (await a.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, dispatches = await documents(store, offer["record"])
    assert len(dispatches) == 2
    assert record.metrics["agent_replayed"] == 6


async def test_replays_at_the_only_process_are_counted(store: Store) -> None:
    await tasks(store)
    async with gateway(store, engine()) as one:
        offer = await one.claim()
        for count in range(3):
            headers = {"x-stainless-retry-count": str(count)}
            await step(one.sdk(offer["api_key"]), list(offer["messages"]), extra_headers=headers)
        assert (await one.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    record, _ = await documents(store, offer["record"])
    assert record.metrics == {"agent_first": 1, "agent_replayed": 2}


async def test_a_gateway_says_that_it_waits_for_agents_or_for_their_requests(store: Store) -> None:
    await tasks(store)

    async def doing() -> str:
        workers = await store.workers.all()
        return workers[0].doing if workers else ""

    async with gateway(store, ScriptedEngine(["<answer>7</answer>"]), heartbeat_s=0.05, poll_s=0.05) as one:
        idle = "for an agent: no attempt is open; tasks: more tasks to open; until one claims a task"
        await until(doing, lambda said: said.endswith(idle))
        await one.claim()
        await until(doing, lambda said: "for requests of agents: 1 attempts are open, and none has a request" in said)
