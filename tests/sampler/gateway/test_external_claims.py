"""Harnesses that wait for a task, and the number of attempts that a process may have."""

import asyncio

from sampler.gateway.harness_api import POLL_S
from shared.documents import Claim, Slot
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.gateways import documents, gateway, tasks
from tests.sampler.gateway.test_external import CALLS
from tests.sampler.running import until


async def test_a_task_whose_harness_left_while_it_waited_is_claimed_by_another(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        asked, may_claim, claimed, claim = asyncio.Event(), asyncio.Event(), asyncio.Event(), one.service._claim

        async def late() -> list[Claim]:
            asked.set()
            await may_claim.wait()
            while not (found := await claim()):  # noqa: ASYNC110 - of another process, too
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


async def test_a_claim_whose_gateway_died_before_its_agent_knew_is_free_soon_and_no_failure(store: Store) -> None:
    await tasks(store)
    options = {"lease_s": 1.0, "renew_s": 0.9}
    async with (
        gateway(store, ScriptedEngine(CALLS), **options) as killed,
        gateway(store, ScriptedEngine(CALLS)) as other,
    ):
        first = await killed.claim()
        killed.is_killed()
        second = await other.claim(wait_s=60)
        assert second["record"] != first["record"]
    task = await store.tasks.get((await documents(store, second["record"]))[0].task)
    assert task is not None
    assert (task.slots[0].attempt, task.slots[0].failures) == (2, 0)


async def test_an_agent_that_was_told_has_the_idle_time_before_its_first_request(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), lease_s=30.0, renew_s=0.2) as one:
        offer = await one.claim()
        name = (await documents(store, offer["record"]))[0].task

        async def slot() -> Slot:
            task = await store.tasks.get(name)
            assert task is not None
            return task.slots[0]

        told = await until(slot, lambda found: not found.unconfirmed)
        claimed = (await documents(store, offer["record"]))[0].created_at
        assert claimed is not None
        assert (told.free_at - claimed).total_seconds() > 500


async def test_an_agent_that_was_told_just_before_a_stop_has_the_idle_time_too(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), lease_s=30.0, renew_s=20.0) as one:
        offer = await one.claim()
    record, _ = await documents(store, offer["record"])
    task = await store.tasks.get(record.task)
    assert task is not None
    assert record.created_at is not None
    assert not task.slots[0].unconfirmed
    assert (task.slots[0].free_at - record.created_at).total_seconds() > 500


async def test_claims_at_once_exceed_no_limit_of_attempts(store: Store) -> None:
    await tasks(store, 8)
    async with gateway(store, ScriptedEngine(CALLS), max_concurrent_episodes=2) as one:
        await one.claim(wait_s=30)
        answers = await asyncio.gather(*(one.http.post("/claim", json={}) for _ in range(6)))
        assert sorted(answer.status_code for answer in answers) == [200, *[503] * 5]


async def test_clients_that_wait_for_a_task_ask_the_database_one_at_a_time(store: Store) -> None:
    async with gateway(store, ScriptedEngine(CALLS)) as one:
        claim, asked = one.service._claim, [0]

        async def counted() -> list[Claim]:
            asked[0] += 1
            return await claim()

        one.service._claim = counted  # type: ignore[method-assign]  # replaced for this test
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
