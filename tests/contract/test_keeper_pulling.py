"""Keepers that do not see the trainer's disk: engines load what was pulled, from the trainer's server or another keeper."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.documents.states import ServiceStatus
from shared.store import Store
from shared.weights.files import manifest_of
from tests.contract.engines import Engine, started
from tests.contract.flights import Until
from tests.contract.kept import POLICY, assert_serves, keeping
from trainer.publishing.version_files import Written
from trainer.publishing.weights_server import WeightsServer
from trainer.settings.publish import TransportSettings

PEERS = {"weight_transport": "peers"}


class FarTrainer:
    """Serves versions over the network; the announced paths do not exist for others."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store, self._engine = store, engine
        self.server = WeightsServer(
            store, POLICY, TransportSettings(broadcast_address="127.0.0.1", broadcast_limit_s=60)
        )
        self._written: list[Written] = []

    async def publish(self) -> int:
        folder = self._engine.weights(len(self._written) + 1)
        written = Written(folder, "full", manifest_of(folder))
        self._written.append(written)
        url = await self.server.serve(self._written)
        elsewhere = f"/another/machine/{len(self._written)}"
        version = await self._store.versions.announce(POLICY, len(self._written), elsewhere, written.files, source=url)
        return version.version


@asynccontextmanager
async def far_trainer(store: Store, engine: Engine) -> AsyncIterator[FarTrainer]:
    trainer = FarTrainer(store, engine)
    try:
        yield trainer
    finally:
        await trainer.server.end(-1)


@pytest.fixture
def second(shared_engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    with started("local", shared_engine.models[0], tmp_path / "second.log") as (url, _):
        yield replace(shared_engine, kind="local", url=url)


@pytest.mark.parametrize("transport", ["auto", "peers"])
async def test_an_engine_follows_versions_that_its_machine_has_no_disk_for(
    engine: Engine, store: Store, until: Until, transport: str
) -> None:
    if engine.kind != "local" and transport == "auto":
        pytest.skip("what is pulled is chosen in the same way for every engine: tested once, with the local one")
    async with far_trainer(store, engine) as trainer, keeping(engine, store, until, weight_transport=transport) as kept:
        for _ in range(3):
            await assert_serves(kept, await trainer.publish())
        (worker,) = await store.workers.live()
        size = sum(path.stat().st_size for path in engine.weights(3).iterdir())
        assert worker.stats["update_bytes"] >= size
        assert worker.stats["update_pull_s"] > 0


async def test_a_later_engine_pulls_from_the_first_when_the_trainers_machine_is_gone(
    engine: Engine, second: Engine, store: Store, until: Until
) -> None:
    if engine.kind != "local":
        pytest.skip("keepers pull in the same way for every engine: tested once, with the local one")
    async with far_trainer(store, engine) as trainer, keeping(engine, store, until, **PEERS) as kept:
        await assert_serves(kept, await trainer.publish())
        await trainer.server.end(1)
        async with keeping(second, store, until, first=1, **PEERS) as late:
            await assert_serves(late, 1)


async def test_a_version_without_a_source_is_an_error_that_passes(engine: Engine, store: Store, until: Until) -> None:
    if engine.kind != "local":
        pytest.skip("keepers pull in the same way for every engine: tested once, with the local one")
    async with far_trainer(store, engine) as trainer, keeping(engine, store, until, **PEERS) as kept:
        files = manifest_of(engine.weights(1))
        await store.versions.announce(POLICY, 1, "/another/machine/1", files)
        await kept.error_with("version 1 has no source: expected a trainer with weight_transport peers")
        assert (await kept.service()).status is ServiceStatus.UP
        await trainer.server.serve([Written(engine.weights(1), "full", files)])
        await assert_serves(kept, 1)


async def test_by_default_the_disk_is_read_where_it_is_seen_whole(
    engine: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    """A folder of the same name from another run, with files of other sizes, is not the trainer's disk."""
    if engine.kind != "local":
        pytest.skip("what is pulled is chosen in the same way for every engine: tested once, with the local one")
    async with far_trainer(store, engine) as trainer, keeping(engine, store, until) as kept:
        files = manifest_of(engine.weights(1))
        url = await trainer.server.serve([Written(engine.weights(1), "full", files)])
        await store.versions.announce(POLICY, 1, str(engine.weights(1)), files, source=url)
        await assert_serves(kept, 1)
        assert (await kept.service()).weights_url is None
        files = manifest_of(engine.weights(2))
        for name in files:
            (tmp_path / name).write_bytes(b"other")
        url = await trainer.server.serve([Written(engine.weights(2), "full", files)])
        await store.versions.announce(POLICY, 2, str(tmp_path), files, source=url)
        await assert_serves(kept, 2)
        assert (await kept.service()).weights_url is not None
