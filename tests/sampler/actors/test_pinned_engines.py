"""Engines of one version alone: how they come to serve it, and who may use them. And fixed actors never hold up admission."""

from pathlib import Path
from typing import Any

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engines import Engines
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.process import ServiceProcess
from sampler.core.service.service import SamplerService
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.target import loadable_from, target_version
from sampler.settings import SamplerConfig
from shared.documents.run import Admission, InferenceService
from shared.documents.states import ServiceStatus
from shared.errors import DataError
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.shared.builders import import_tasks

URL = "http://10.0.0.1:1"


def keeper(**options: Any) -> KeeperConfig:
    return KeeperConfig(run="r", db_connection_string="x", model_name_or_path=MODEL, engine_url=URL, **options)


async def announce(store: Store, first: int, last: int) -> None:
    for step in range(first, last + 1):
        await store.versions.announce("main", step, f"/main/{step}", {})


async def register(store: Store, url: str, version: int, **fields: Any) -> None:
    values: dict[str, Any] = {"id": url, "url": url, "policy": "main", "version": version, "status": ServiceStatus.UP}
    await store.services.heartbeat(InferenceService(**values, **fields))


async def test_an_engine_with_serve_version_serves_it_as_soon_as_it_is_there_and_never_another(store: Store) -> None:
    await announce(store, 0, 1)
    pinned = keeper(serve_version=2)
    assert await target_version(store, pinned, URL, -1) is None, "not published yet"
    await announce(store, 2, 4)
    wanted = await target_version(store, pinned, URL, -1)
    assert wanted is not None
    assert wanted.version == 2
    newest = await target_version(store, keeper(), URL, -1)
    assert newest is not None
    assert newest.version == 4
    assert not pinned.joins_broadcasts
    assert keeper().joins_broadcasts


@pytest.mark.parametrize(
    ("gone", "how"),
    [(2, "version 2 was withdrawn: training went on from step 1"), (1, "version 1 is pruned"), (0, None)],
)
async def test_a_pinned_version_is_not_loaded_once_its_files_are_or_will_be_deleted(
    store: Store, gone: int, how: str | None
) -> None:
    await announce(store, 0, 2)
    await store.versions.mark_pruned("main", [1])
    await store.versions.withdraw_after("main", 1, trainer_generation=2)
    wanted = await target_version(store, keeper(serve_version=gone), URL, -1)
    assert wanted is not None, "an engine that has it already goes on"
    if how is None:
        assert [version.version for version in await loadable_from(store, wanted)] == [0, 1, 2]
        return
    with pytest.raises(DataError, match=how):
        await loadable_from(store, wanted)


def test_an_engine_follows_or_serves_one_version() -> None:
    with pytest.raises(ValueError, match="serve_version is 2 and follow_every 3; expected one of them"):
        keeper(serve_version=2, follow_every=3)


async def test_only_pinned_actors_use_an_engine_of_one_version(store: Store) -> None:
    await register(store, "http://10.0.0.1:1", 7)
    await register(store, "http://10.0.0.2:1", 2, serve_version=2)
    config = SamplerConfig(run=store.run, db_connection_string="x", model_name_or_path=MODEL)
    async with EngineClient() as client:
        engines = Engines(store, client, config)
        await engines.refresh()
        assert engines.served_versions() == [7]
        own, every = engines.policy_clients["main"].pool, engines.every_version["main"]
        assert [await own.is_up(version) for version in (2, 7)] == [False, True]
        assert [await every.is_up(version) for version in (2, 7, 9)] == [True, True, False]
        await engines.close()


async def test_documents_of_engines_that_follow_are_as_earlier_versions_read_them(store: Store) -> None:
    await register(store, URL, 7)
    found = await store.database["inference_services"].find_one({})
    assert found is not None
    assert "serve_version" not in found


@pytest.mark.parametrize(
    ("actors", "limit"),
    [
        ({"Bob": {"policy": "main"}, "Judge": {"policy": "judge", "at": "frozen"}}, 12),
        ({"Bob": {"policy": "main"}, "Judge": {"policy": "judge", "at": 0}, "Old": {"policy": "main", "at": 0}}, 12),
        ({"Bob": {"policy": "main"}, "Critic": {"model": "api"}, "Judge": {"policy": "judge", "at": 0}}, 12),
        ({"Bob": {"policy": "main"}, "Judge": {"policy": "judge"}}, 0),
        ({}, 0),
    ],
    ids=["frozen", "pinned", "an API model", "trained", "no actors: trained"],
)
async def test_admission_waits_only_for_trainers_of_policies_with_a_trained_actor(
    store: Store, actors: dict[str, Any], limit: int
) -> None:
    """A policy whose actors are all fixed has no trainer; nothing waits for one."""
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=2, num_steps=3))
    others: dict[str, Path] = {"judge": MODEL}
    config = SamplerConfig(
        run=store.run, db_connection_string="x", model_name_or_path=MODEL, other_policies=others, actors=actors
    )
    await import_tasks(store, 20)
    async with EngineClient() as client:
        service = SamplerService(ServiceProcess(store, client, "w"), config, SamplerKinds(MCPSampler, {}))
        await service._refresh()
    assert service._view.state.seq_limit == limit
