"""The health check of a host's keepers. (Of one whose engine has other weights: tests/system/test_database_users.py.)"""

import pytest

from sampler.core.errors import EngineUnavailable
from sampler.engine.keeper.config import KeeperConfig
from sampler.engine.keeper.health import problem
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.mongod import Mongod, free_port
from shared.store import Store
from tests.system.processes import MODEL


async def checked(mongod: Mongod, store: Store, *services: tuple[str, ServiceStatus]) -> str | None:
    """What the check on host "here" says of services whose engines do not answer, each given by its host and status."""
    for number, (host, status) in enumerate(services):
        url = f"http://127.0.0.1:{free_port()}"
        await store.services.heartbeat(
            InferenceService(
                id=f"{number}",
                url=url,
                policy="main",
                version=0,
                status=status,
                keeper=f"keeper:{host}:1",
                heartbeat_s=600,
            )
        )
    config = KeeperConfig(run=store.run, db_connection_string=mongod.connection_string, model_name_or_path=MODEL)
    return await problem(config, "here")


async def test_a_keeper_whose_engine_sleeps_while_the_trainer_computes_is_healthy(mongod: Mongod, store: Store) -> None:
    assert await checked(mongod, store, ("here", ServiceStatus.ASLEEP)) is None


async def test_every_keeper_of_the_host_is_checked(mongod: Mongod, store: Store) -> None:
    healthy = [("here", ServiceStatus.ASLEEP), ("here", ServiceStatus.UPDATING), ("elsewhere", ServiceStatus.UP)]
    assert await checked(mongod, store, *healthy) is None
    with pytest.raises(EngineUnavailable):
        await checked(mongod, store, *healthy, ("here", ServiceStatus.UP))


async def test_a_host_without_a_keeper_is_a_problem(mongod: Mongod, store: Store) -> None:
    said = await checked(mongod, store, ("elsewhere", ServiceStatus.UP))
    assert said == "no keeper on host here has a current heartbeat"
