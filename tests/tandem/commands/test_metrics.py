"""`tandem metrics`: what samplers could play now, for what scales them."""

import os
import re
import signal
import subprocess
import sys

import httpx
import pytest

from shared.documents.run import Admission, InferenceService, Worker
from shared.documents.states import RunState, ServiceStatus
from shared.processes.mongod import Mongod
from shared.store import Store
from tandem.commands.metrics import figures
from tests.shared.builders import claim, make_task
from tests.shared.episodes import announce


def served(run: str, mongod: Mongod) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tandem", "metrics", run, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"DB_CONNECTION_STRING": mongod.connection_string},
    )


async def test_wanted_episodes_are_the_slots_within_the_budget_not_the_whole_queue(store: Store) -> None:
    await announce(store, 0)
    await store.tasks.insert_new([make_task(seq, num_generations=3) for seq in range(50)])
    assert (await figures(store))["wanted_episodes"] == 0, "no trainer has started"
    await store.runs.start_trainer("main", Admission(groups_per_step=2, max_staleness=1, num_steps=9))
    found = await figures(store)
    assert (found["wanted_episodes"], found["slots_open"], found["slots_leased"]) == (12, 12, 0)
    assert await claim(store)
    assert await claim(store)
    found = await figures(store)
    assert (found["wanted_episodes"], found["slots_open"], found["slots_leased"]) == (12, 10, 2)
    await store.runs.set_state(RunState.PAUSED)
    found = await figures(store)
    assert (found["wanted_episodes"], found["paused"]) == (2, 1), "of a paused run only what is being played"
    await store.runs.set_state(RunState.RUNNING)
    await store.tasks.insert_new([make_task(0, split="eval", num_generations=1, at_version=0)])
    assert (await figures(store))["wanted_episodes"] == 13


async def test_what_agents_elsewhere_play_needs_no_sampler(store: Store) -> None:
    await announce(store, 0)
    await store.tasks.insert_new([make_task(seq, num_generations=3) for seq in range(9)])
    await store.runs.start_trainer("main", Admission(groups_per_step=2, max_staleness=1, num_steps=9))
    for worker in ("gateway:h:1", "gateway:h:1", "sampler:h:2"):
        assert await claim(store, worker)
    found = await figures(store)
    assert (found["slots_open"], found["slots_leased"], found["slots_at_gateways"]) == (9, 3, 2)
    assert found["wanted_episodes"] == 10


async def test_figures_count_living_samplers_and_engines(store: Store) -> None:
    for pid in (1, 2):
        await store.workers.heartbeat(
            Worker(id=f"sampler:h:{pid}", kind="sampler", host="h", pid=pid, stats={"episodes_running": 3})
        )
    await store.workers.leave("sampler:h:2")
    for policy in ("main", "judge"):  # as adapters of one engine: each service reports the load of all
        load = {"status": ServiceStatus.UP, "running": 5, "waiting": 1, "heartbeat_s": 3600}
        await store.versions.announce(policy, 0, "/weights/0", {})
        await store.services.heartbeat(
            InferenceService(id=f"http://a:1#{policy}", url="http://a:1", policy=policy, version=0, **load)
        )
    found = await figures(store)
    assert (found["samplers"], found["episodes_running"]) == (1, 3)
    assert (found["engines_up"], found["engine_requests_running"], found["engine_requests_waiting"]) == (1, 5, 1)


@pytest.mark.timeout(300)
async def test_prometheus_and_json_are_served_until_sigterm(mongod: Mongod, store: Store) -> None:
    await announce(store, 0)
    await store.tasks.insert_new([make_task(seq) for seq in range(9)])
    await store.runs.start_trainer("main", Admission(groups_per_step=2, max_staleness=0, num_steps=9))
    process = served(store.run, mongod)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].strip().removesuffix("/metrics")
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            text = (await client.get("/metrics")).text
            assert re.search(rf'^tandem_wanted_episodes{{run="{store.run}"}} 4$', text, re.MULTILINE), text
            names = [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")]
            assert len(names) == len(set(names)) == text.count("# TYPE")
            assert (await client.get("/metrics.json")).json()["wanted_episodes"] == 4
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert [(await client.get(path)).status_code for path in ("/", "/metrics/x")] == [404, 404]
            assert (await client.post("/metrics")).status_code == 405
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        process.stdout.close()
