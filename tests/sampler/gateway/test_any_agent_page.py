"""The examples of docs/bring/any_agent.md run as they stand; the one for LangGraph runs in `clients_table`."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from shared.documents.states import RecordStatus
from shared.store import Store
from tests.sampler.gateway.agents import ScriptedEngine, call, played, trained_ids
from tests.sampler.gateway.gateways import gateway, tasks

PAGE = (Path(__file__).parents[3] / "docs" / "bring" / "any_agent.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FUNCTIONS = [block for block in BLOCKS if "async def agent" in block]
HARNESS = next(block for block in BLOCKS if '"/claim"' in block)


@pytest.mark.parametrize("block", FUNCTIONS, ids=["openai", "anthropic"])
async def test_a_function_of_the_page_plays_an_episode(store: Store, block: str) -> None:
    names: dict[str, Any] = {}
    exec(block, names)
    engine = ScriptedEngine([f"{call('add', a=1, b=2)}\n{call('add', a=3, b=4)}", "<answer>4</answer>"])
    record, _, dispatches = await played(store, engine, names["agent"])
    assert record.error is None
    assert (record.status, record.score) == (RecordStatus.SCORED, 1.0)
    assert [(c.name, c.result) for c in dispatches[0].tool_calls] == [("add", "3"), ("add", "7")]
    assert trained_ids(dispatches) == engine.exchanges


async def test_the_harness_of_the_page_claims_plays_and_finishes(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await tasks(store)
    engine = ScriptedEngine(["<answer>4</answer>"])
    async with gateway(store, engine, gateway_token="the-gateways-token") as one:
        await asyncio.to_thread(exec, HARNESS.replace("http://127.0.0.1:9800", one.url), {})
    assert "'status': 'scored', 'score': 1.0" in capsys.readouterr().out
    assert len(engine.exchanges) == 1
