"""`tandem fork` before any sampler plays: what it queues, what it refuses, and what it says is missing."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import Result

from shared.documents.run import InferenceService, Worker
from shared.documents.states import RunState, ServiceStatus
from shared.store import Store
from tests.shared.cli.commands import RECORD, Command
from tests.shared.episodes import whole_run


async def fork(tandem: Command, store: Store, turn: int, *flags: str, code: int) -> Result:
    result = await asyncio.to_thread(tandem, "fork", store.run, f"{RECORD}:{turn}", *flags)
    assert result.exit_code == code, result.output
    return result


async def test_what_is_missing_is_said_at_once_with_the_command_that_starts_it(tandem: Command, store: Store) -> None:
    await whole_run(store)
    told = (await fork(tandem, store, 0, code=1)).stderr
    assert "no engine of policy main is alive" in told
    assert f"python -m sampler.engine.keeper --run {store.run}" in told
    await store.services.heartbeat(
        InferenceService(id="http://e", url="http://e", policy="main", version=0, status=ServiceStatus.UP)
    )
    await store.workers.heartbeat(Worker(id="trainer:main:h:1", kind="trainer", host="h", pid=1))
    told = (await fork(tandem, store, 0, code=1)).stderr
    assert "no sampler is alive" in told
    assert f"python -m sampler --run {store.run}" in told
    await store.runs.set_state(RunState.PAUSED)
    assert f"`tandem resume {store.run}`" in (await fork(tandem, store, 0, code=1)).stderr
    (task,) = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert (task["_id"], task["num_generations"]) == (f"main:fork:0:{RECORD}:0", 8)
    assert task["payload"]["fork"] == {
        **{"dispatch": f"{RECORD}:0", "sampling_params": {"temperature": 1.0}, "earlier_calls": "none"}
    }


async def test_it_must_be_said_what_becomes_of_earlier_tool_calls(tandem: Command, store: Store) -> None:
    await whole_run(store)
    told = (await fork(tandem, store, 1, code=2)).stderr
    assert "turn 1 comes after 1 tool call" in told
    assert "--stateless_tools" in told
    assert "--replay_tools" in told
    assert await store.database["tasks"].count_documents({"split": "fork"}) == 0
    await fork(tandem, store, 1, "--stateless_tools", "--replay_tools", code=2)
    told = (await fork(tandem, store, 1, "--replay_tools", "--no_wait", code=0)).stdout
    assert told.strip() == f"queued: main:fork:0:{RECORD}:1"
    told = (await fork(tandem, store, 1, "--replay_tools", "--no_wait", code=0)).stdout
    assert told.strip() == f"already queued: main:fork:0:{RECORD}:1"
    (task,) = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert task["payload"]["fork"]["earlier_calls"] == "replayed"


@pytest.mark.parametrize("flags", [["--n", "4"], ["--temperature", "0.5"]], ids=str)
async def test_another_fork_of_the_same_turn_needs_again(tandem: Command, store: Store, flags: list[str]) -> None:
    await whole_run(store)
    await fork(tandem, store, 0, "--no_wait", code=0)
    told = (await fork(tandem, store, 0, *flags, "--no_wait", code=2)).stderr
    assert "add --again" in told
    told = (await fork(tandem, store, 0, *flags, "--again", "--no_wait", code=0)).stdout
    assert told.strip() == f"queued: main:fork:1:{RECORD}:0"


async def test_copies_of_a_greedy_reply_are_refused(tandem: Command, store: Store) -> None:
    await whole_run(store)
    greedy = {"$set": {"sampling_params": {"temperature": 0.0, "max_new_tokens": 8}}}
    await store.database["dispatched_sampling_tasks"].update_many({}, greedy)
    assert "was sampled greedily" in (await fork(tandem, store, 0, code=2)).stderr
    await fork(tandem, store, 0, "--temperature", "1", "--no_wait", code=0)
    (task,) = await store.database["tasks"].find({"split": "fork"}).to_list()
    assert task["payload"]["fork"]["sampling_params"] == {"temperature": 1.0}, (
        "of the reply's length, the sampler decides"
    )


def test_a_task_file_makes_no_fork(tandem: Command, tmp_path: Path) -> None:
    origin = {"dispatch": "r:0", "sampling_params": {}}
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a", "query": "?", "answer": "1", "fork": origin}))
    told = tandem("tasks", "import", "forks", "t.jsonl")
    assert told.exit_code == 2, told.output
    assert "fork" in told.stderr
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "a", "query": "?", "answer": "1"}))
    told = tandem("tasks", "import", "forks", "t.jsonl", "--split", "fork")
    assert told.exit_code == 2, told.output
    assert "split 'fork' is for continuations of stored turns" in told.stderr


async def test_queued_forks_are_episodes_that_samplers_are_wanted_for(tandem: Command, store: Store) -> None:
    await whole_run(store)
    before = await store.questions.slots_to_play("main", 0)
    await fork(tandem, store, 0, "--no_wait", code=0)
    assert (await store.questions.slots_to_play("main", 0))["open"] == before["open"] + 8
