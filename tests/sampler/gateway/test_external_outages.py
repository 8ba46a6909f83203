"""Requests of agents elsewhere: cancelled during an outage of the database; repeated while equal requests run."""

import asyncio
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from shared.documents.states import DispatchStatus
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.gateways import documents, gateway, tasks
from tests.sampler.gateway.test_external import CALLS, step


class Away:
    """A collection whose writes fail as in an outage, after `let` of them."""

    def __init__(self, collection: Any, let: int) -> None:
        self._collection, self._let = collection, let
        self._failed = 0
        self.is_tried_again = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collection, name)

    async def bulk_write(self, *args: Any, **options: Any) -> Any:
        if self._let:
            self._let -= 1
            return await self._collection.bulk_write(*args, **options)
        self._failed += 1
        if self._failed == 2:
            self.is_tried_again.set()
        raise AutoReconnect("the server restarts")


@pytest.mark.parametrize("written", [0, 1], ids=["request", "reply"])
@pytest.mark.parametrize("again", [False, True], ids=["left", "sent again"])
async def test_a_client_that_leaves_in_an_outage_leaves_no_gap(store: Store, written: int, again: bool) -> None:
    """Its request, or the reply, is written when the database is back: the number has been used."""
    await tasks(store)
    engine = ScriptedEngine(lambda prompt: CALLS[0])
    async with gateway(store, engine) as one:
        offer = await one.claim()
        messages = list(offer["messages"])
        await step(one.sdk(offer["api_key"]), messages)
        verbs = one.service._store.sessions
        there = verbs._dispatches
        verbs._dispatches = away = Away(there, written)  # type: ignore[assignment]  # replaced for this test
        first = asyncio.create_task(step(one.sdk(offer["api_key"]), list(messages)))
        async with asyncio.timeout(60):
            await away.is_tried_again.wait()
        headers = {"x-stainless-retry-count": "1"} if again else {}
        if not again:
            first.cancel()
            await asyncio.sleep(0.5)
            verbs._dispatches = there
        asked = asyncio.create_task(step(one.sdk(offer["api_key"]), messages, extra_headers=headers))
        await asyncio.sleep(0.5)
        verbs._dispatches = there
        await asked
        await asyncio.wait([first])
        assert (await one.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    _, dispatches = await documents(store, offer["record"])
    assert [d.turn for d in dispatches] == list(range(len(dispatches)))


async def test_equal_requests_at_once_are_no_repetitions_of_each_other(store: Store) -> None:
    """Several samples: of which of them a request is the repetition cannot be known."""
    await tasks(store)
    async with gateway(store, ScriptedEngine(lambda prompt: CALLS[0], delay_s=1.0)) as one:
        offer = await one.claim()

        async def ask(delay_s: float, **headers: str) -> None:
            await asyncio.sleep(delay_s)
            await step(one.sdk(offer["api_key"], max_retries=0), list(offer["messages"]), extra_headers=headers)

        await asyncio.gather(ask(0), ask(0), ask(0), ask(0.4, **{"x-stainless-retry-count": "1"}))
        assert (await one.finish(offer["api_key"], score=1)).json()["status"] == "scored"
    _, dispatches = await documents(store, offer["record"])
    assert [d.status for d in dispatches] == [DispatchStatus.COMPLETED] * 4
