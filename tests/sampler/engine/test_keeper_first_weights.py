"""An engine that a keeper starts on the run's initial weights does not load them twice, and loads others before it serves."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.engine.keeper.keeper import Keeper, KeeperConfig
from shared.documents.states import ServiceStatus
from shared.store import Store
from shared.weights.assembly import Assembly
from shared.weights.files import manifest_of
from tests.system.processes import MODEL, ROOT

LOADED_AGAIN = "weights updated"  # the engine's log, of an update from disk


@asynccontextmanager
async def keeping(store: Store, folder: Path, **settings: object) -> AsyncIterator[None]:
    config = KeeperConfig.model_validate(
        {
            **{"run": store.run, "db_connection_string": "(open already)", "model_name_or_path": MODEL},
            **{"poll_s": 0.05, "heartbeat_s": 0.05, "start_timeout_s": 400, "kv_cache_bytes": 1 << 24, **settings},
        }
    )
    stop = asyncio.Event()
    async with EngineClient() as client:
        running = asyncio.create_task(Keeper(store, client, config, Assembly(folder / "cache", MODEL)).run(stop))
        yield
        stop.set()
        await running


async def serves(store: Store, version: int) -> str:
    """Until the engine serves the version; returns its URL."""
    async with asyncio.timeout(400):
        while True:
            for service in await store.services.all():
                if (service.status, service.version) == (ServiceStatus.UP, version):
                    return service.url
            await asyncio.sleep(0.05)


@pytest.mark.timeout(900)
async def test_a_started_engine_has_the_first_weights_and_loads_the_next_ones(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    async with keeping(store, tmp_path):
        url = await serves(store, 0)
        async with EngineClient() as client:
            assert (await client.model_info(url)).weight_version == "0"
        first = capfd.readouterr()
        shutil.copytree(MODEL, later := tmp_path / "later")
        await store.versions.announce("main", 1, str(later), manifest_of(later))
        await serves(store, 1)
    assert LOADED_AGAIN not in first.out + first.err
    second = capfd.readouterr()
    assert (second.out + second.err).count(LOADED_AGAIN) == 1


@pytest.mark.timeout(900)
async def test_first_weights_in_another_folder_than_the_engines_are_loaded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    shutil.copytree(MODEL, other := tmp_path / "other")
    await store.versions.ensure_first("main", str(other), manifest_of(other))
    async with keeping(store, tmp_path):
        await serves(store, 0)
    found = capfd.readouterr()
    assert (found.out + found.err).count(LOADED_AGAIN) == 1
