"""A real sampler process with its agents over real HTTP: the record shows failover, an outage gives no score."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared.documents import Task, TaskPayload
from shared.documents.run import InferenceService
from shared.documents.states import RecordStatus, ServiceStatus, SlotStatus, TaskStatus
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from tests.sampler.agents.endpoints import Service, endpoint
from tests.shared.builders import make_task
from tests.system.processes import MODEL, PATIENCE_S, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BOX = ROOT / "tests" / "sampler" / "tool_servers" / "box.py"
CALL = '<tool_call>{"name": "big", "arguments": {"n_chars": 3000}}</tool_call>'


@contextmanager
def child(log: Path, *command: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "JUDGE_KEY": "sk-very-secret"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)


def agents_file(folder: Path, judges: Sequence[Service], browsers: Sequence[Service] = ()) -> Path:
    def section(services: Sequence[Service], **more: Any) -> dict[str, Any]:
        models = [
            {"model": f"m{n}", "base_url": s.url, "api_key": "${JUDGE_KEY}"} for n, s in enumerate(services, start=1)
        ]
        return {"models": models, "max_retries": 1, "retry_delay": 0.01, "breaker_failures": 100, **more}

    found = {"scorer_agent": section(judges)}
    if browsers:
        found["browse_agent"] = section(
            browsers, browse_tools=["big"], default_purpose={"big": "How does it end?"}, min_prompt_length=100
        )
    path = folder / "agents.yml"
    path.write_text(json.dumps(found))  # JSON is YAML
    return path


@asynccontextmanager
async def sampling(folder: Path, mongod: Mongod, store: Store, agents: Path, *, turns: int) -> AsyncIterator[None]:
    """A sampler that plays every task there is on the stub engine, one after the other. Its log is sampler.log."""
    port = free_port()
    (folder / "mcp.json").write_text(
        json.dumps({"mcpServers": {"box": {"command": "${PYTHON}", "args": [str(BOX), "stdio"]}}})
    )
    flags = {
        "run": store.run,
        "db_connection_string": mongod.connection_string,
        "model_name_or_path": str(MODEL),
        "agent_config_path": str(agents),
        "max_concurrent_episodes": "1",
        "max_failures": "2",
        "retry_delay_s": "0.05",
        "poll_s": "0.05",
        **({"mcp_manager_url": str(folder / "mcp.json")} if turns > 1 else {}),
    }
    command = ["-m", "sampler", "--open_all_tasks", "true"]
    command += [part for name, value in flags.items() for part in (f"--{name}", value)]
    engine = ["-m", "scripts.bench.stub_engine", "--model-path", str(MODEL), "--port", str(port), "--tokens", "100"]
    engine += ["--turns", str(turns), "--tool-call", CALL]
    with child(folder / "engine.log", *engine), child(folder / "sampler.log", *command):
        await _register(store, f"http://127.0.0.1:{port}")
        yield


async def _register(store: Store, url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.get("/model_info")
                break
            except httpx.TransportError:
                await asyncio.sleep(0.05)  # a child does not signal that its port is open
    await store.services.heartbeat(
        InferenceService(
            id=url, url=url, policy="main", version=0, status=ServiceStatus.UP, capacity=4, heartbeat_s=3600
        )
    )


async def settled(store: Store, task: str) -> Task:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await store.tasks.get(task)
            if found is not None and found.status in (TaskStatus.SETTLED, TaskStatus.ABANDONED):
                return found
            await asyncio.sleep(0.05)  # another process changes it


async def queue(store: Store, answer: str, num_generations: int) -> str:
    task = make_task(0, num_generations=num_generations)
    await store.tasks.insert_new([task.model_copy(update={"payload": TaskPayload(query="2+2?", answer=answer)})])
    return task.id


async def test_the_record_shows_who_judged_and_who_summarized_and_what_failed_before(
    tmp_path: Path, mongod: Mongod, store: Store
) -> None:
    async with (
        endpoint("status 503", "closes", "judges") as judge_1,
        endpoint("judges") as judge_2,
        endpoint("garbage") as browse_1,
        endpoint("says It ends with END.") as browse_2,
    ):
        task = await queue(store, "4", 2)
        agents = agents_file(tmp_path, [judge_1, judge_2], [browse_1, browse_2])
        async with sampling(tmp_path, mongod, store, agents, turns=2):
            found = await settled(store, task)
        log = (tmp_path / "sampler.log").read_text()
        assert [slot.score for slot in found.slots] == [1.0, 1.0]
        first, second = [slot.record_id or "" for slot in found.slots]
        records = await store.records.get_many([first, second])
        judged = records[first].reward_details["judged_by"]
        assert (judged["model"], judged["service"], judged["completion_tokens"]) == ("m2", judge_2.url, 2)
        assert [f["model"] for f in judged["failures"]] == ["m1", "m1"]
        assert "status 503" in judged["failures"][0]["error"]
        assert "connection failed" in judged["failures"][1]["error"]
        again = records[second].reward_details["judged_by"]
        assert (again["model"], again["failures"]) == ("m1", [])
        (call,) = (await store.records.dispatches_of([first]))[first][0].tool_calls
        assert call.result == "[summary of 3000 characters; purpose: How does it end?]\nIt ends with END."
        assert call.summarized_by is not None
        assert (call.summarized_by.model, [f.model for f in call.summarized_by.failures]) == ("m2", ["m1", "m1"])
        assert json.loads(call.raw or "")["content"][0]["text"].endswith("END")
        assert call.cut_chars == 3000
        assert "sk-very-secret" not in log
        for name in await store.database.list_collection_names():
            assert "sk-very-secret" not in str(await store.database[name].find().to_list())


async def test_a_total_outage_of_the_judge_gives_no_score_and_stays_out_of_the_groups_statistics(
    tmp_path: Path, mongod: Mongod, store: Store
) -> None:
    """Two of three episodes are judged, then both judges are gone for good: the third is retried and in the end failed."""
    async with (
        endpoint("says Correct", "says Incorrect", "status 500") as judge_1,
        endpoint("garbage") as judge_2,
    ):
        task = await queue(store, "4", 3)
        async with sampling(tmp_path, mongod, store, agents_file(tmp_path, [judge_1, judge_2]), turns=1):
            found = await settled(store, task)
        assert found.status is TaskStatus.SETTLED
        by_status = {status: [s for s in found.slots if s.status is status] for status in SlotStatus}
        assert sorted(s.score or 0.0 for s in by_status[SlotStatus.SCORED]) == [0.0, 1.0]
        (lost,) = by_status[SlotStatus.FAILED]
        assert (lost.score, lost.failures) == (None, 2)
        data = await store.data.find({})
        assert sorted((d.group_size, d.reward, d.dispatches[0].advantage) for d in data) == [(2, 0, -0.5), (2, 1, 0.5)]
        failed = await store.database["records"].find({"status": RecordStatus.FAILED}).to_list()
    assert len(failed) == 2
    for record in failed:
        assert (record["score"], record["termination"]) == (None, "agent_failure")
        assert "m1 at " in record["error"]
        assert "status 500" in record["error"]
        assert "m2 at " in record["error"]
        assert record["advantage"] is None
