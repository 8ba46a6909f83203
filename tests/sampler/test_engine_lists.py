"""The list of engines that a sampler process sends by: its own, over the database."""

import asyncio
import json
import shutil
import socket
from pathlib import Path

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import LIST_AGE_S
from sampler.core.engines.pool.engines import Engines
from sampler.settings import SamplerConfig
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.errors import ConfigError
from shared.store import Store

MODEL = Path(__file__).parents[2] / "assets" / "example" / "model"


async def tell(store: Store, status: ServiceStatus) -> None:
    service = InferenceService(
        id="http://a:1", url="http://a:1", policy="main", version=3, status=status, heartbeat_s=3600
    )
    await store.services.heartbeat(service)


async def test_a_sampler_learns_in_time_that_an_engine_drains_for_any_poll_interval(store: Store) -> None:
    """Regardless of its own settings, since a keeper waits only for `LIST_AGE_S`."""
    config = SamplerConfig(run=store.run, db_connection_string="(open already)", model_name_or_path=MODEL, poll_s=3600)
    await tell(store, ServiceStatus.UP)
    async with EngineClient() as client:
        engines = Engines(store, client, config)
        pool = engines.policy_clients["main"].pool
        await engines.refresh()
        assert await pool.is_up()
        await tell(store, ServiceStatus.DRAINING)
        await asyncio.sleep(LIST_AGE_S)
        assert not await pool.is_up()
        await tell(store, ServiceStatus.UPDATING)  # paused: what it is sent it answers afterwards
        await asyncio.sleep(LIST_AGE_S)
        assert await pool.is_up()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.9", "localhost", "[::1]"])
async def test_an_engine_at_another_machines_loopback_address_is_skipped_with_a_sentence(
    store: Store, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, url = socket.gethostname(), f"http://{address}:30000"
    config = SamplerConfig(run=store.run, db_connection_string="(open already)", model_name_or_path=MODEL)
    async with EngineClient() as client:
        engines = Engines(store, client, config)
        for keeper, reachable in ((f"keeper:{here}:7", True), (None, True), ("keeper:gpu2:7", False)):
            await store.services.heartbeat(up(url, keeper))
            await engines.refresh()
            assert engines.ready() is reachable
        assert await engines.policy_clients["main"].pool.is_up() is False
        await engines.refresh()
        (alarm,) = engines.alarms()
        assert alarm.startswith(f"engine {url} is not used: its keeper is on gpu2")
        assert "engine_host" in alarm
        assert caplog.text.count(alarm) == 1
        await store.services.heartbeat(up("http://gpu2:30000", "keeper:gpu2:7"))
        await engines.refresh()
        assert engines.ready()
        assert [service.url for service in engines.up()] == ["http://gpu2:30000"]


def up(url: str, keeper: str | None) -> InferenceService:
    return InferenceService(
        id=url, url=url, policy="main", version=3, status=ServiceStatus.UP, keeper=keeper, heartbeat_s=3600
    )


async def test_an_engine_that_serves_several_policies_counts_once(store: Store) -> None:
    """As adapters of one engine: each service reports the load of all, so their sum has twice the free places."""
    config = SamplerConfig(
        **{"run": store.run, "db_connection_string": "(open already)", "model_name_or_path": MODEL},
        other_policies={"judge": MODEL},
    )
    for policy in ("main", "judge"):
        shared = up("http://a:1", None).model_copy(update={"id": f"http://a:1#{policy}", "policy": policy})
        await store.services.heartbeat(shared.model_copy(update={"capacity": 64, "running": 10, "waiting": 2}))
    async with EngineClient() as client:
        engines = Engines(store, client, config)
        await engines.refresh()
        assert engines.ready()
        assert [(s.url, s.capacity, s.running, s.waiting) for s in engines.up()] == [("http://a:1", 64, 10, 2)]


async def test_a_tokenizer_with_tokens_that_the_model_lacks_stops_the_start(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    described = json.loads((folder / "config.json").read_text())
    size = described["vocab_size"]
    settings = {"run": store.run, "db_connection_string": "(open already)", "model_name_or_path": folder}
    async with EngineClient() as client:
        Engines(store, client, SamplerConfig.model_validate(settings))
        (folder / "config.json").write_text(json.dumps(described | {"vocab_size": size // 2}))
        with pytest.raises(
            ConfigError, match=rf"its config\.json has vocab_size {size // 2}: the model lacks \d+ tokens"
        ):
            Engines(store, client, SamplerConfig.model_validate(settings))
