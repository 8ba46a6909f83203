"""AgentRL's own programs on both sides of the wire, where AGENTRL_PYTHON names a Python that has them (0.4.0 and 0.1.2)."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sampler.environments.choosing import Environments
from shared.documents.states import SlotStatus
from shared.store import Store
from tests.sampler.environments.playing import one_episode, task_of, worlds
from tests.sampler.environments.services import service
from tests.sampler.episodes import ended

HERE = Path(__file__).parent
PYTHON = os.environ.get("AGENTRL_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="AGENTRL_PYTHON, a Python with agentrl-worker and agentrl-eval, is not set"
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 4, "b": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def controller() -> Iterator[dict[str, str]]:
    """The setting `environment_controllers` for a real worker."""
    command = [PYTHON, "-m", "tests.sampler.environments.agentrl_controller"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2])
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    yield {"calculator": f"http://127.0.0.1:{port}/api"}
    process.kill()
    process.wait()
    process.stdout.close()


async def test_an_episode_in_agentrls_worker_with_its_tool(store: Store, controller: dict[str, str]) -> None:
    await store.tasks.insert_new([task_of(store, 0, "calculator", 4)])
    async with worlds(store, lambda turn: (CALL, "5")[turn], environment_controllers=controller) as (resources, engine):
        sampler, score = await one_episode(store, resources)
        record, _, dispatches = await ended(store, sampler)
        engine.check(record, dispatches)
    assert (score, record.termination, record.metrics) == (1.0, "answered", {"tries": 1.0})
    assert dispatches[0].tool_calls[0].result == "5"
    assert [dispatch.score for dispatch in dispatches] == [0.0, 1.0]


async def test_a_task_error_of_agentrls_worker_is_no_reward_of_0(store: Store, controller: dict[str, str]) -> None:
    await store.tasks.insert_new([task_of(store, 0, "calculator", 13)])
    async with worlds(store, "5 {}".format, environment_controllers=controller) as (resources, _):
        sampler, score = await one_episode(store, resources)
        record, slot, _ = await ended(store, sampler)
    assert (score, record.score, slot.status, slot.failures) == (None, None, SlotStatus.OPEN, 1)
    assert (record.termination, "task error" in (record.error or "")) == ("environment_failure", True)


async def test_its_full_worker_is_waited_for_without_blame(store: Store, controller: dict[str, str]) -> None:
    """It takes two sessions at once: a third one is 406."""
    await store.tasks.insert_new([task_of(store, seq, "calculator", 4) for seq in range(3)])
    config = {"environment_controllers": controller, "environment_wait_s": 0.5}
    async with worlds(store, "5".format, **config) as (resources, _):
        places = resources.opened.of(Environments)
        async with places.session("calculator", 1, {}), places.session("calculator", 2, {}):
            sampler, score = await one_episode(store, resources)
            record, slot, _ = await ended(store, sampler)
            assert (score, slot.failures, record.termination) == (None, 0, "environment_busy")
            assert "406" in (record.error or "")
        _, score = await one_episode(store, resources)
    assert score == 1.0, "both were cancelled: there is room"


def test_agentrls_client_plays_our_service() -> None:
    with service("--workers", "1", worlds="Guess") as one:
        done = subprocess.run([PYTHON, HERE / "agentrl_client.py", one.url], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["indices"], told["first"], told["wrong"]) == (1000, "A digit?", ["running", -0.25])
    assert told["right"] == ["completed", True, 1.0, {"tries": 1}]
    assert "cancelled" in told["cancelled"]
