"""The end of an attempt that runs elsewhere: what its process knows is not read again, and what another process did is."""

import pytest

from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine
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
