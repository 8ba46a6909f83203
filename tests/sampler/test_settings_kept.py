"""What every sampler ran with can be read from the database afterwards, its agents among it, and no key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bson import encode

from sampler.core.api_models.config import read_agents_config
from shared.store import Store
from tests.late_commands import everything
from tests.sampler.running import running_sampler, until

AGENTS = """
browse_agent:
  browse_tools: [fetch]
  models:
    - {model: m1, base_url: "http://one:1/v1", api_key: "${BROWSE_KEY}", extra_body: {api_key: hidden-7, top_k: 3}}
scorer_agent:
  timeout: 7.0
  models:
    - {model: m2, base_url: "http://two:2/v1", temperature: 0.5, extra_body: {headers: [{Authorization: hidden-7}]}}
"""


def agents_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROWSE_KEY", "hidden-7")
    path = folder / "agents.yml"
    path.write_text(AGENTS)
    return path


async def kept(store: Store) -> list[dict[str, Any]]:
    return await store.database["settings"].find().sort([("created_at", 1)]).to_list()


async def test_each_distinct_settings_of_samplers_are_stored_once_including_their_agents(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = agents_file(tmp_path, monkeypatch)
    runs: list[dict[str, Any]] = [
        {"poll_s": 1.0, "agent_config_path": str(path), "default_scorer": "exact_match"},
        {"poll_s": 0.5},
        {"poll_s": 0.5},
    ]
    for number, options in enumerate(runs):
        async with running_sampler(store, **options) as running:
            await until(lambda: store.workers.live(), lambda workers: workers)
            found = await kept(store)
            assert len(found) == min(2, number + 1)
            assert not running.done()
    first, second = await kept(store)
    assert [each["values"]["poll_s"] for each in (first, second)] == [1.0, 0.5]
    assert [each["workers"] for each in (first, second)] == [["w"], ["w"]]
    assert first["values"]["agents"]["scorer_agent"]["models"] == [
        {
            "model": "m2",
            "base_url": "http://two:2/v1",
            "temperature": 0.5,
            "extra_body": {"headers": [{"Authorization": "***"}]},
            "supports_vision": False,
        }
    ]
    assert first["values"]["agents"]["browse_agent"]["models"][0]["extra_body"] == {"api_key": "***", "top_k": 3}
    assert first["values"]["agents"]["scorer_agent"]["timeout"] == 7.0
    assert "agents" not in second["values"]
    assert b"hidden-7" not in encode(await everything(store.database))
    assert (await asyncio.to_thread(read_agents_config, path)).scorer_agent is not None, "what is used is as it was"
