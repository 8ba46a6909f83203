"""verifiers' environment server asks the model itself, at the gateway. VERIFIERS_PYTHON: a Python with verifiers 0.4.0."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sampler.core.episode.episode import play
from sampler.gateway.agent_sampler import AgentSampler
from shared.documents import TaskPayload
from shared.documents.states import RecordStatus
from shared.processes.mongod import free_port
from shared.store import Store
from tests.sampler.episodes import ended, resources
from tests.sampler.gateway.agents import ScriptedEngine, call, trained_ids
from tests.shared.builders import claim, make_task

PYTHON = os.environ.get("VERIFIERS_PYTHON", "")
FOLDER = Path(__file__).parents[3] / "assets" / "verifiers"
MOST = 1 << 20
pytestmark = pytest.mark.skipif(not PYTHON, reason="VERIFIERS_PYTHON, a Python with verifiers, is not set")


@contextmanager
def serving() -> Iterator[str]:
    address = f"tcp://127.0.0.1:{free_port()}"
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    server = subprocess.Popen([PYTHON, FOLDER / "serve.py", "tandem_sums", address], env=environment)
    try:
        yield address
    finally:
        server.terminate()
        server.wait()


async def one(store: Store, address: str, replies: Any, **task_data: Any) -> Any:
    engine = ScriptedEngine(replies)
    task = {"idx": 3, "prompt": "What is 3 + 4 + 5?", "total": 12, **task_data}
    options: dict[str, Any] = {
        "max_tokens": MOST,
        "max_prompt_tokens": MOST,
        "agent_command": shlex.join([str(PYTHON), str(FOLDER / "play.py"), address]),
    }
    options |= {"sampler": "sampler.gateway.agent_sampler:AgentSampler", "max_turns": 20}
    asked = TaskPayload(query=task["prompt"], metadata={"task_data": task})
    await store.tasks.insert_new([make_task(0, num_generations=1).model_copy(update={"payload": asked})])
    async with resources(store, engine, **options) as shared:
        sampler = AgentSampler(shared, await claim(store))
        await play(sampler)
        return (*await ended(store, sampler), engine)


async def test_its_server_plays_an_episode_at_the_gateway_and_its_reward_is_the_score(store: Store) -> None:
    replies = [call("add", a=3, b=4), call("add", a=7, b=5), "It is 12"]
    with serving() as address:
        record, _, dispatches, engine = await one(store, address, replies)
        assert (record.status, record.score) == (RecordStatus.SCORED, 1.5), record.error
        assert len(dispatches) == 3
        assert trained_ids(dispatches) == engine.exchanges, "the ids that were sampled"


async def test_what_fails_on_the_server_is_no_score(store: Store) -> None:
    with serving() as address:
        record, _, _, _ = await one(store, address, ["It is 12"], total="no number")
    assert (record.score, "environment" in str(record.error) or "crash" in str(record.error).lower()) == (None, True), (
        record.error
    )
