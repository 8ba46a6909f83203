"""The list of engines that a sampler process sends by: its own, over the database."""

import asyncio
from pathlib import Path

from sampler.config import SamplerConfig
from sampler.engine.client.engine_client import EngineClient
from sampler.engine.pool.engine_pool import LIST_AGE_S
from sampler.engine.pool.engines import Engines
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
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
        await engines.look()
        assert await pool.is_up()
        await tell(store, ServiceStatus.DRAINING)
        await asyncio.sleep(LIST_AGE_S)
        assert not await pool.is_up()
        await tell(store, ServiceStatus.UPDATING)  # paused: what it is sent it answers afterwards
        await asyncio.sleep(LIST_AGE_S)
        assert await pool.is_up()
