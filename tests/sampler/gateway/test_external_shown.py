"""What `tandem` tells of attempts of agents that run elsewhere."""

import asyncio
import contextlib

from openai import APIStatusError
from typer.testing import CliRunner

from shared.processes.mongod import Mongod
from shared.store import Store
from tandem import app
from tandem.commands.metrics import figures
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.gateway.gateways import gateway, tasks
from tests.sampler.gateway.test_external import CALLS, step


async def tandem(mongod: Mongod, *arguments: str) -> str:
    """Its output, in one line."""
    environment = {"DB_CONNECTION_STRING": mongod.connection_string, "COLUMNS": "300"}
    done = await asyncio.to_thread(CliRunner().invoke, app, list(arguments), env=environment)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


async def test_an_episode_tells_which_gateway_asked_for_each_turn_and_how_its_agent_ended_it(
    mongod: Mongod, store: Store
) -> None:
    await tasks(store, 2)
    async with (
        gateway(store, ScriptedEngine(CALLS), max_turns=2) as a,
        gateway(store, ScriptedEngine(CALLS), max_turns=2) as b,
    ):
        offer = await a.claim()
        messages = list(offer["messages"])
        await step(a.sdk(offer["api_key"]), messages)
        await step(b.sdk(offer["api_key"]), messages, temperature=0.1, extra_headers={"idempotency-key": "k"})
        told = await tandem(mongod, "show", store.run, offer["record"])
        assert f"an agent elsewhere; claimed at gateway:{a.url}" in told
        for process, how in ((a, "(first)"), (b, "(continued, sent again); ignored: temperature")):
            asked = told.split(f"through gateway:{process.url} ", 1)[1]
            assert asked.split(" ", 1)[1].startswith(how), asked[:200]
        assert "agent has not finished" in told
        with contextlib.suppress(APIStatusError):
            await step(a.sdk(offer["api_key"]), messages)
        await a.http.post("/score", json={"score": 0.5}, headers={"x-api-key": offer["api_key"]})
        await b.finish(offer["api_key"], answer="7")
        told = await tandem(mongod, "show", store.run, offer["record"])
        assert "posted the score 0.5, met turns_limit at turn 2, finished with answer at 20" in told
        given = await a.claim()
        await a.finish(given["api_key"], give_back=True)
        assert "gave the task back at 20" in await tandem(mongod, "show", store.run, given["record"])


async def test_gateways_are_workers_of_a_kind_of_their_own(mongod: Mongod, store: Store) -> None:
    await tasks(store, 2)
    async with gateway(store, ScriptedEngine(CALLS), heartbeat_s=0.2) as one:
        await one.claim(wait_s=30)
        while (found := await figures(store))["attempts_known"] < 1:  # noqa: ASYNC110 - the next heartbeat
            await asyncio.sleep(0.1)
        assert (found["gateways"], found["samplers"], found["episodes_running"]) == (1, 0, 0)
        assert "gateway" in (await tandem(mongod, "status", store.run)).split("workers: 1 alive", 1)[1]
