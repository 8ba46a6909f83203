"""What a sampler that plays nothing reads: of a paused run its document, and once after each refresh what the tasks wait for."""

from collections.abc import AsyncIterator

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.process import ServiceProcess
from sampler.core.service.service import SamplerService
from sampler.settings import SamplerConfig
from shared.documents.run import Admission
from shared.documents.states import RunState
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.shared.builders import import_tasks
from tests.shared.looks import Examined, examine


@pytest.fixture
async def service(store: Store) -> AsyncIterator[SamplerService]:
    await store.runs.start_trainer("main", Admission(groups_per_step=4, max_staleness=2, num_steps=3))
    await import_tasks(store, 20)
    config = SamplerConfig(run=store.run, db_connection_string="x", model_name_or_path=MODEL)
    async with EngineClient() as client:
        yield SamplerService(ServiceProcess(store, client, "w"), config, SamplerKinds(MCPSampler, {}))


async def refreshed(mongod: Mongod, store: Store, service: SamplerService) -> Examined:
    return await examine(mongod.connection_string, store, lambda store: service._refresh())


async def test_a_sampler_of_a_paused_run_reads_its_document_alone(
    mongod: Mongod, store: Store, service: SamplerService
) -> None:
    await store.runs.set_state(RunState.PAUSED)
    await store.signals.close()
    assert len((await refreshed(mongod, store, service)).plans) > 2, "it also looks for what is wrong at the start"
    assert len((await refreshed(mongod, store, service)).plans) == 1
    assert "it is paused" in str(await service._doing())
    await store.runs.set_state(RunState.RUNNING)
    await service._refresh()
    assert not service._view.state.paused
    assert service._view.state.seq_limit == 12
    await store.runs.set_state(RunState.PAUSED)
    await service._refresh()
    assert service._view.state.paused


async def test_what_the_tasks_wait_for_is_read_once_after_a_refresh(
    mongod: Mongod, store: Store, service: SamplerService
) -> None:
    await service._refresh()
    outlook = service._view.outlook
    read = await examine(mongod.connection_string, store, lambda store: outlook())
    assert len(read.plans) == 2
    first = await outlook()
    await store.database["tasks"].update_many({}, {"$set": {"status": "skipped"}})
    assert await outlook() == first
    await service._refresh()
    assert (first.next_seq, (await outlook()).next_seq) == (0, None)
