"""docs/bring/any_agent.md: an agent's failure is scored where the model's reply caused it, and retried where the machine did."""

import asyncio
import os
import shlex
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAIError
from pydantic import BaseModel

from sampler.core.episode.episode import play
from sampler.core.episode.model_acts import LEAST, ModelActs
from sampler.gateway.agent_sampler import AgentSampler, AgentTask
from sampler.gateway.crash import MachineWatch
from shared.documents import TaskPayload
from shared.documents.states import RecordStatus, SlotStatus, Termination
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, an_episode, played
from tests.sampler.gateway.gateways import documents, gateway, tasks
from tests.sampler.gateway.test_agent_sampler import COMMAND, ONE, ask
from tests.shared.builders import claim, import_tasks, make_task

SCORED = (RecordStatus.SCORED, 0.0, Termination.REPLY_REJECTED)
FAILED = (RecordStatus.FAILED, None, Termination.AGENT_CRASHED)


class Sum(BaseModel):
    total: int


async def test_a_framework_that_raises_on_the_models_output_is_scored(store: Store) -> None:
    """OpenAI's client parses the reply by a schema, and raises on any other text, as agent frameworks do."""

    async def agent(task: AgentTask) -> float:
        async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
            reply = await client.chat.completions.parse(model=task.model, messages=task.messages, response_format=Sum)  # type: ignore[arg-type]  # plain dicts
            assert reply.choices[0].message.parsed is not None
            return float(reply.choices[0].message.parsed.total == 4)

    record, slot, dispatches = await played(store, ScriptedEngine(["four, I think"]), agent)
    assert (record.status, record.score, record.termination) == SCORED
    assert slot.status is SlotStatus.SCORED
    assert [one.response is not None for one in dispatches] == [True]
    assert record.reward_details["scorer"] == "agent_crash"
    assert "after reply 1 of the model, no request failed" in record.reward_details["reason"]
    assert "Invalid JSON" in record.reward_details["error"]
    assert record.metrics["act_agent_crash"] == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, SCORED),
        ({"agent_crash_score": -1.0}, (RecordStatus.SCORED, -1.0, Termination.REPLY_REJECTED)),
        ({"agent_crash": "retry"}, FAILED),
    ],
)
async def test_the_setting_decides_what_a_crash_is_worth(store: Store, options: Any, expected: Any) -> None:
    async def agent(task: AgentTask) -> None:
        await ask(task)
        raise ValueError("no JSON")

    record, _, _ = await played(store, ScriptedEngine(ONE), agent, **options)
    assert (record.status, record.score, record.termination) == expected


async def refused(task: AgentTask, **body: Any) -> None:
    assert (await ask(task, **body)).status_code == 400


async def refused_and_went_on(task: AgentTask) -> None:
    await refused(task, messages=7)
    (await ask(task)).raise_for_status()


async def lacks_memory(task: AgentTask) -> None:
    raise MemoryError


async def connects(task: AgentTask) -> None:
    await asyncio.open_connection("127.0.0.1", 1)


async def leaves(task: AgentTask) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await ask(task, messages=SLOW)


async def has_open_request(task: AgentTask) -> None:
    running.add(asyncio.create_task(ask(task, messages=SLOW)))
    await asyncio.sleep(1)


SLOW = [{"role": "user", "content": "slow"}]
running: set[Any] = set()
CAUSES: dict[str, tuple[Any, Any]] = {
    "refused": (partial(refused, n=3), FAILED),
    "refused by its form": (partial(refused, messages=7), FAILED),
    "refused, then went on": (refused_and_went_on, SCORED),
    "memory": (lacks_memory, FAILED),
    "connection": (connects, FAILED),
    "left": (leaves, FAILED),
    "running": (has_open_request, FAILED),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("rule", ["auto", "score"])
async def test_a_crash_with_another_cause_than_the_reply_is_no_score(store: Store, cause: str, rule: str) -> None:
    does, by_evidence = CAUSES[cause]
    quick = ScriptedEngine(ONE * 3)

    async def agent(task: AgentTask) -> None:
        (await ask(task)).raise_for_status()
        await does(task)
        raise ValueError("no JSON")

    async def engine(request: httpx.Request) -> httpx.Response:
        found = await quick(request)
        if does in (leaves, has_open_request) and len(quick.exchanges) > 1:
            await asyncio.sleep(3600)
        return found

    record, _, _ = await played(store, engine, agent, agent_crash=rule)
    assert (record.status, record.score, record.termination) == (SCORED if rule == "score" else by_evidence)


@pytest.mark.parametrize(("own", "expected"), [("score", 0.5), ("retry", None)])
async def test_a_task_may_have_a_rule_of_its_own(store: Store, own: Any, expected: float | None) -> None:
    payload = TaskPayload(query="2+2?", answer="7", agent_crash=own, agent_crash_score=0.5)
    await store.tasks.insert_new([make_task(0, num_generations=1).model_copy(update={"payload": payload})])
    async with gateway(store, ScriptedEngine(["7"]), agent_crash_score=0.25) as one:
        offer = await one.claim()
        await one.sdk(offer["api_key"]).chat.completions.create(model="main", messages=offer["messages"])
        assert (await one.finish(offer["api_key"], error="ValueError")).json()["score"] == expected


@pytest.mark.parametrize("then", ["raises", "hangs", "asks and raises"])
@pytest.mark.parametrize("rule", ["auto", "retry"])
async def test_a_final_score_counts_whatever_the_agent_does_then(store: Store, then: str, rule: str) -> None:
    async def agent(task: AgentTask) -> None:
        await ask(task)
        assert (await ask(task, "/score", score=0.75)).status_code == 200
        if then == "hangs":
            await asyncio.sleep(3600)
        if then == "asks and raises":
            await ask(task)
        raise ValueError("no JSON")

    record, slot, _ = await played(
        store, ScriptedEngine(ONE * 2), agent, agent_crash=rule, episode_timeout_s=20.0 if then == "hangs" else 600.0
    )
    if then == "asks and raises" and rule == "retry":
        assert (record.status, record.score, record.termination) == FAILED, "it was not final"
        return
    assert (record.status, record.score, slot.status) == (RecordStatus.SCORED, 0.75, SlotStatus.SCORED)
    assert record.reward_details["scorer"] == "agent"
    assert record.reward_details["reason"]


ENDS = {
    "exits": ("sys.exit('ValueError: no JSON')", SCORED),
    "is killed": ("os.kill(os.getpid(), 9)", SCORED),
    "is terminated": ("os.kill(os.getpid(), 15)", FAILED),
    "lacks memory": ("raise MemoryError('x')", FAILED),
    "lost a connection": ("import socket; socket.create_connection(('127.0.0.1', 1))", FAILED),
    "says an error's name": ("sys.exit('ValueError: no JSON in ConnectionError: x')", SCORED),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_command_that_fails_after_a_reply_is_judged_by_how_it_ended(
    store: Store, tmp_path: Path, end: str
) -> None:
    code, expected = ENDS[end]
    script = tmp_path / "agent.py"
    script.write_text(f"{COMMAND}\n{code}\n")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} '{{query}}'"
    record, _, _ = await played(store, ScriptedEngine(ONE), None, agent_command=command)
    assert (record.status, record.score, record.termination) == expected


async def test_a_score_that_a_command_posted_counts_although_it_is_terminated(store: Store, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(f"{COMMAND}\nos.kill(os.getpid(), 15)\n")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} '{{query}}' score"
    record, _, _ = await played(store, ScriptedEngine(ONE), None, agent_command=command)
    assert (record.status, record.score) == (RecordStatus.SCORED, 0.25)


def test_a_killed_command_is_the_machines_act_where_it_lacked_memory() -> None:
    watch = MachineWatch()
    assert watch.outside(-signal.SIGKILL, "") == "" or not os.path.exists("/proc/vmstat")
    watch._before = -1  # the kernel has ended processes since
    assert "lacked memory" in watch.outside(-signal.SIGKILL, "")
    assert "lacked memory" in watch.outside(128 + signal.SIGKILL, "")
    assert "SIGTERM" in watch.outside(128 + signal.SIGTERM, "")
    assert watch.outside(1, "") == ""


@pytest.mark.parametrize("by", ["the same", "another"])
@pytest.mark.parametrize(
    ("fault", "expected"), [("reply", ("scored", 0.0)), ("no reply", ("failed", None)), ("refused", ("failed", None))]
)
async def test_an_error_of_an_agent_elsewhere_is_judged_by_the_documents(
    store: Store, by: str, fault: str, expected: Any
) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(ONE * 2)) as a, gateway(store, ScriptedEngine([])) as b:
        offer = await a.claim()
        sdk = a.sdk(offer["api_key"])
        if fault != "no reply":
            await sdk.chat.completions.create(model="main", messages=offer["messages"])
        if fault == "refused":
            with pytest.raises(OpenAIError):
                await sdk.chat.completions.create(model="main", messages=[], n=3)
        done = (await {"the same": a, "another": b}[by].finish(offer["api_key"], error="ValueError: no JSON")).json()
        assert (done["status"], done["score"]) == expected
    record, _ = await documents(store, offer["record"])
    assert record.termination == (Termination.REPLY_REJECTED if fault == "reply" else Termination.AGENT_CRASHED)


async def test_a_score_that_was_posted_elsewhere_counts_though_the_harness_reports_an_error(store: Store) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(ONE), agent_crash="retry") as one:
        offer = await one.claim()
        await one.sdk(offer["api_key"]).chat.completions.create(model="main", messages=offer["messages"])
        own = {"authorization": f"Bearer {offer['api_key']}"}
        assert (await one.http.post("/score", json={"score": 0.5}, headers=own)).status_code == 200
        done = (await one.finish(offer["api_key"], error="Segmentation fault")).json()
        assert (done["status"], done["score"]) == ("scored", 0.5)


async def test_the_process_that_plays_tells_of_many_scored_crashes(store: Store) -> None:
    async def agent(task: AgentTask) -> None:
        await ask(task)
        raise ValueError("no JSON")

    async with an_episode(store, ScriptedEngine(ONE * LEAST), agent) as first:
        await import_tasks(store, LEAST, num_generations=1)
        await play(first)
        for _ in range(LEAST - 1):
            await play(AgentSampler(first.resources, await claim(store)))
        (alarm,) = first.resources.alarms()
    assert alarm.startswith(f"{LEAST} of the latest {LEAST} episodes ended because their agent failed")


def test_many_crashes_that_were_scored_are_an_alarm() -> None:
    acts = ModelActs()
    for _ in range(LEAST - 1):
        acts.ended({"agent_crash": "ValueError: no JSON"})
    assert acts.alarms() == []
    acts.ended({})
    (alarm,) = acts.alarms()
    assert f"{LEAST - 1} of the latest {LEAST} episodes" in alarm
    assert "ValueError: no JSON" in alarm
    for _ in range(10 * LEAST):
        acts.ended({})
    assert acts.alarms() == []
