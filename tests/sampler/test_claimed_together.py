"""Slots that one command leased: what the process has not started when it ends is free for others at once."""

import asyncio
from typing import Any

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.kinds.mcp_sampler import MCPSampler
from sampler.core.service import service as module
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.process import ServiceProcess
from sampler.core.service.service import SamplerService
from sampler.settings import SamplerConfig
from shared.documents import Claim
from shared.documents.states import SlotStatus
from shared.errors import StoreUnavailable
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.shared.builders import import_tasks
from tests.shared.test_batched_verbs import claims


async def test_a_process_that_ends_between_two_starts_frees_the_slots_that_it_has_not_started(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await import_tasks(store, 1, num_generations=4)
    leased = await claims(store, 4)
    config = SamplerConfig(run=store.run, db_connection_string="x", model_name_or_path=MODEL)
    opened: list[str] = []

    def second_fails(kind: Any, resources: Any, claim: Claim) -> object:
        opened.append(claim.record_id)
        if len(opened) == 2:
            raise StoreUnavailable("away")
        return object()

    monkeypatch.setattr(module, "new_episode", second_fails)
    monkeypatch.setattr(module, "play", lambda sampler: asyncio.sleep(3600))  # longer than the test
    async with EngineClient() as client:
        service = SamplerService(ServiceProcess(store, client, "w"), config, SamplerKinds(MCPSampler, {}))
        monkeypatch.setattr(service, "_ended", lambda *given: None)
        monkeypatch.setattr(service._ruled, "of", lambda task: None)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                await service._start(group, leased)
    task = await store.tasks.get(leased[0].task.id)
    assert task is not None
    assert [slot.status for slot in task.slots] == [SlotStatus.LEASED, *[SlotStatus.OPEN] * 3]
    assert [slot.failures for slot in task.slots] == [0] * 4
