"""Agents as functions and commands: their scores, their ends, and what they may not do."""

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from sampler.core.episode.episode import play
from sampler.gateway.agent_sampler import AgentTask
from sampler.gateway.app import MAX_BODY_BYTES
from sampler.gateway.server import GatewayServer
from shared.documents.states import DispatchStatus, RecordStatus, SlotStatus, Termination
from shared.store import Store
from tests.sampler.episodes import ended
from tests.sampler.gateway.agents import ADD, ScriptedEngine, an_episode, played, trained_ids
from tests.sampler.test_secrets import OTHER_USER, needs_bubblewrap, needs_root

ONE = ["<answer>4</answer>"]
COMMAND = """
import json, os, subprocess, sys, urllib.request
task = json.load(open(os.environ["TANDEM_TASK_FILE"]))
assert task["query"] == sys.argv[1] and task["prompt"] == sys.stdin.read(), (task, sys.argv)
assert "answer" not in task, task
def post(url, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
body = {"model": os.environ["OPENAI_MODEL"], "messages": task["messages"]}
reply = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
print("said", reply["choices"][0]["message"]["content"])
print("secrets", sorted(name for name in os.environ if "DB_" in name))
if "left" in sys.argv:
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    open("child", "w").write(str(child.pid))
if "score" in sys.argv:
    post(os.environ["TANDEM_SCORE_URL"], {"score": 0.25})
if "crash" in sys.argv:
    sys.exit("out of cheese")
"""


async def ask(task: AgentTask, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
    given = {"model": task.model, "messages": task.messages} | body
    async with httpx.AsyncClient(base_url=task.url, headers={"x-api-key": task.api_key}) as client:
        return await client.post(path, json=given, timeout=60)


@pytest.mark.parametrize(
    ("returned", "score", "answer"),
    [(None, 1.0, "4"), ("<answer>5</answer>", 0.0, "5"), ("4", 1.0, "4"), (0.5, 0.5, None), (True, 1.0, None)],
)
async def test_the_score_is_what_the_agent_returns_or_the_scorers(
    store: Store, returned: Any, score: float, answer: str | None
) -> None:
    async def agent(task: AgentTask) -> Any:
        await ask(task)
        return returned

    record, slot, _ = await played(store, ScriptedEngine(ONE), agent)
    assert (record.score, record.answer, slot.status) == (score, answer, SlotStatus.SCORED)


async def test_posted_scores_count_for_the_episode_and_for_its_turns(store: Store) -> None:
    async def agent(task: AgentTask) -> float:
        reply = (await ask(task)).json()
        turn = reply["id"].removeprefix("chatcmpl-")
        assert (await ask(task, "/score", score=0.5, turn=turn)).status_code == 200
        assert (await ask(task, "/score", score=0.75)).status_code == 200
        assert (await ask(task, "/score", score=1, turn="nine")).status_code == 400
        assert (await ask(task, "/score", score="high")).status_code == 400
        return 0.0

    record, _, dispatches = await played(store, ScriptedEngine(ONE), agent)
    assert record.score == 0.75
    assert dispatches[0].score == 0.5


@pytest.mark.parametrize("fault", ["raises first", "no request", "engine"])
async def test_a_crash_or_a_lost_reply_is_never_a_score(store: Store, fault: str) -> None:
    async def agent(task: AgentTask) -> float | None:
        if fault == "raises first":
            raise LookupError("no such page")
        if fault != "no request":
            await ask(task)
        return 1.0 if fault == "engine" else None

    async def broken(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500)

    engine = broken if fault == "engine" else ScriptedEngine(ONE)
    record, slot, _ = await played(store, engine, agent)
    expected = Termination.ENGINE_FAILURE if fault == "engine" else Termination.AGENT_CRASHED
    assert (record.status, record.score, record.termination) == (RecordStatus.FAILED, None, expected)
    assert slot.status is SlotStatus.OPEN
    assert "no such page; at" in (record.error or "") or fault != "raises first"


async def test_a_crash_that_follows_a_limit_ends_the_episode_by_that_limit(store: Store) -> None:
    async def agent(task: AgentTask) -> None:
        for _ in range(3):
            (await ask(task)).raise_for_status()

    record, _, dispatches = await played(store, ScriptedEngine(ONE * 3), agent, max_turns=2)
    assert (record.status, record.termination, record.score) == (RecordStatus.SCORED, Termination.TURNS_LIMIT, 1.0)
    assert len(dispatches) == 2


async def test_a_return_value_that_is_no_score_fails_its_episode_alone(store: Store) -> None:
    async def agent(task: AgentTask) -> Any:
        await ask(task)
        return [1.0]

    record, _, _ = await played(store, ScriptedEngine(ONE), agent)
    assert (record.status, record.score) == (RecordStatus.FAILED, None)
    assert "the agent returned [1.0]; expected a finite number" in str(record.error)


async def test_a_key_ends_with_its_attempt_and_no_document_contains_it(store: Store) -> None:
    keys = []

    async def agent(task: AgentTask) -> None:
        keys.append((task.url, task.api_key))
        assert (await ask(task)).status_code == 200

    async with an_episode(store, ScriptedEngine(ONE * 2), agent) as first:
        await play(first)
        url, key = keys[0]
        assert await first.resources.opened.of(GatewayServer).session_of(key) is None
        async with httpx.AsyncClient() as client:
            refused = await client.get(f"{url}/v1/models", headers={"x-api-key": key})
            assert refused.status_code == 401
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/v1/models", headers={"x-api-key": key})
    for name in await store.database.list_collection_names():
        async for document in store.database[name].find({}):
            assert key not in str(document)


async def test_a_request_that_runs_when_the_agent_returns_is_cancelled(store: Store) -> None:
    engine = ScriptedEngine(ONE * 2)
    left: list[asyncio.Task[Any]] = []

    async def agent(task: AgentTask) -> None:
        await ask(task)
        engine._delay_s = 3600
        engine.asked.clear()
        left.append(asyncio.create_task(ask(task)))
        await engine.asked.wait()

    record, _, dispatches = await played(store, engine, agent)
    assert record.status is RecordStatus.SCORED
    assert dispatches[1].status is DispatchStatus.FAILED
    assert trained_ids(dispatches) == engine.exchanges[:1]
    assert engine.aborted.is_set()
    await asyncio.gather(*left, return_exceptions=True)


async def test_bodies_and_the_number_of_requests_are_bounded(store: Store) -> None:
    seen = {}

    async def agent(task: AgentTask) -> None:
        async with httpx.AsyncClient(base_url=task.url, headers={"x-api-key": task.api_key}) as client:
            for name, body in {
                "large": b" " * (MAX_BODY_BYTES + 1), "broken": b"{", "deep": b"[" * 100_000, "list": b"[]",
                "lone": b'{"model": "main", "messages": [{"role": "user", "content": "\\ud800"}]}',
            }.items():  # fmt: skip
                seen[name] = (await client.post("/v1/chat/completions", content=body, timeout=60)).status_code
            seen["path"] = (await client.post("/v1/embeddings", content=b"{}")).status_code
            seen["method"] = (await client.get("/v1/messages")).json()["type"]
        await ask(task)

    record, _, _ = await played(store, ScriptedEngine(ONE), agent)
    assert record.status is RecordStatus.SCORED
    assert seen == {
        "large": 413, "broken": 400, "deep": 400, "list": 400, "lone": 400, "path": 404, "method": "error"
    }  # fmt: skip


async def test_a_command_plays_in_a_directory_of_its_own_and_its_processes_end_with_it(
    store: Store, tmp_path: Path
) -> None:
    (script := tmp_path / "agent.py").write_text(COMMAND)
    command = shlex.join([sys.executable, str(script), "{query}", "left", "score"])
    record, _, dispatches = await played(
        store, ScriptedEngine(ONE), None, agent_command=command, agent_folder=tmp_path / "kept"
    )
    assert record.error is None
    assert (record.score, record.termination) == (0.25, Termination.ANSWERED)
    folder = tmp_path / "kept" / record.id
    assert (folder / "stdout.txt").read_text() == "said <answer>4</answer>\nsecrets []\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "child").read_text()), 0)
    assert json.loads((folder / "task.json").read_text())["model"] == "main"
    assert len(dispatches) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"tool_user": OTHER_USER}, f"as {OTHER_USER} ", marks=needs_root),
        pytest.param({"tool_sandbox": "bubblewrap"}, " alone", marks=needs_bubblewrap),
    ],
)
async def test_a_command_may_run_as_another_user_or_without_other_processes(
    store: Store, options: dict[str, str], said: str
) -> None:
    look = "touch made && echo as $(id -un) $(test $$ -lt 10 && echo alone); exit 7"
    command = shlex.join(["/bin/sh", "-c", look])
    record, _, _ = await played(store, ScriptedEngine(ONE), None, agent_command=command, **options)
    assert "ended with status 7: as " in (record.error or "")
    assert said in (record.error or "") + " "


async def test_a_command_that_fails_is_a_failure_with_its_last_words(store: Store, tmp_path: Path) -> None:
    (script := tmp_path / "agent.py").write_text(COMMAND)
    command = shlex.join([sys.executable, str(script), "{query}", "crash"])
    record, _, _ = await played(store, ScriptedEngine(ONE), None, agent_command=command, agent_crash="retry")
    assert (record.status, record.termination, record.score) == (RecordStatus.FAILED, Termination.AGENT_CRASHED, None)
    assert "ended with status 1: out of cheese" in (record.error or "")


async def test_last_words_in_many_pieces_are_told_whole(store: Store, tmp_path: Path) -> None:
    says = "import sys, time\nfor word in 'it was not the cheese'.split():\n    print(word, flush=True)\n    time.sleep(0.1)"
    (script := tmp_path / "agent.py").write_text(says + "\nsys.exit(1)")
    record, _, _ = await played(
        store, ScriptedEngine(ONE), None, agent_command=shlex.join([sys.executable, str(script)])
    )
    assert "it\nwas\nnot\nthe\ncheese" in (record.error or "")


async def test_a_command_ends_with_its_episodes_time(store: Store, tmp_path: Path) -> None:
    (script := tmp_path / "agent.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(3600)"
    )
    command = shlex.join([sys.executable, str(script)])
    async with an_episode(store, ScriptedEngine(ONE), None, agent_command=command) as sampler:
        playing = asyncio.create_task(play(sampler))
        async with asyncio.timeout(60):
            while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)
        playing.cancel()
        await asyncio.wait([playing])
        record, _, _ = await ended(store, sampler)
    assert record.status is RecordStatus.ABANDONED
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_malformed_call_reaches_the_agent_as_text(store: Store) -> None:
    engine = ScriptedEngine(["<tool_call>\n{broken\n</tool_call>", "<answer>4</answer>"])

    async def agent(task: AgentTask) -> None:
        first = (await ask(task, tools=[ADD])).json()["choices"][0]["message"]
        assert first["content"] == "<tool_call>\n{broken\n</tool_call>"
        assert "tool_calls" not in first
        await ask(task, tools=[ADD], messages=[*task.messages, first, {"role": "user", "content": "That was no JSON."}])

    record, _, dispatches = await played(store, engine, agent)
    assert record.metrics == {"agent_first": 1, "agent_continued": 1}
    assert dispatches[0].status is DispatchStatus.FORMAT_ERROR
    assert trained_ids(dispatches) == engine.exchanges
