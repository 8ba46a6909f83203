"""Requests that command-line agents made (`command_lines --record`), replayed: each agent is one conversation of sampled ids."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sampler.gateway.agent_sampler import AgentTask
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, played, trained_ids
from tests.sampler.gateway.command_lines import AGENTS, replies_of

FOLDER = Path(__file__).parent / "transcripts"
RECORDED = sorted(path.stem for path in FOLDER.glob("*.json"))
KEYS = ("authorization", "x-api-key", "x-goog-api-key")  # of OpenAI's clients, Anthropic's, Google's
MOST = 1 << 20


def test_there_are_transcripts() -> None:
    assert len(RECORDED) >= 3


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_agent_is_one_conversation(store: Store, name: str) -> None:
    (recorded,) = (one for one in AGENTS if one.package.endswith(name))
    requests: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    engine = ScriptedEngine(replies_of(recorded))

    async def agent(task: AgentTask) -> None:
        keys = {key: f"Bearer {task.api_key}" if key == "authorization" else task.api_key for key in KEYS}
        async with httpx.AsyncClient(base_url=task.url, headers=keys, timeout=120) as client:
            for request in requests:
                reply = await client.post(request["path"], json=request["body"], headers=request["headers"])
                assert reply.status_code == 200, reply.text

    record, _, dispatches = await played(store, engine, agent, max_tokens=MOST, max_prompt_tokens=MOST, max_turns=20)
    assert record.error is None
    assert record.score == 1.0
    causes = {key: count for key, count in record.metrics.items() if not key.startswith("agent_overridden")}
    assert causes == {"agent_first": 1, "agent_continued": 2}
    assert trained_ids(dispatches) == engine.exchanges
    assert sum(len(one.tool_calls) for one in dispatches) == 3
