"""Whoever plays a task gets its right answer only where the setting `agent_answers` says so."""

import json
from pathlib import Path

import pytest

from sampler.gateway.attempts import visible_payload
from shared.documents import TaskPayload
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, played
from tests.sampler.gateway.gateways import gateway, tasks
from tests.sampler.gateway.test_external import CALLS


@pytest.mark.parametrize("given", [False, True])
async def test_a_claim_has_the_answer_only_where_the_gateway_gives_it(store: Store, given: bool) -> None:
    await tasks(store)
    async with gateway(store, ScriptedEngine(CALLS), **({"agent_answers": True} if given else {})) as one:
        offer = await one.claim()
    assert ("answer" in offer["task"]) is given
    assert offer["task"]["query"] == offer["query"]


@pytest.mark.parametrize("given", [False, True])
async def test_an_agents_command_has_the_answer_only_where_the_sampler_gives_it(
    store: Store, tmp_path: Path, given: bool
) -> None:
    program = tmp_path / "agent.py"
    program.write_text("import os, shutil, sys; shutil.copy(os.environ['TANDEM_TASK_FILE'], sys.argv[1])\n")
    command = f"python3 {program} {tmp_path / 'told.json'}"
    await played(store, ScriptedEngine(CALLS), None, agent_command=command, agent_answers=given)
    assert ("answer" in json.loads((tmp_path / "told.json").read_text())) is given


def test_nothing_else_of_the_task_is_kept_back() -> None:
    payload = TaskPayload(query="What is 1+1?", answer=["2", "two"], metadata={"level": 1})
    whole = payload.model_dump(mode="json")
    assert visible_payload(payload, answers=True) == whole
    assert visible_payload(payload, answers=False) == {name: value for name, value in whole.items() if name != "answer"}
