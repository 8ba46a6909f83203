"""A keeper writes its two documents when they change, else every two seconds while its engine works, and every five while not."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from sampler.engine.keeper import report
from sampler.engine.keeper.report import Reports
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.processes.waits import Activity
from shared.store import Store


def service(status: ServiceStatus = ServiceStatus.UP, running: int = 0) -> InferenceService:
    place = {"id": "http://a", "url": "http://a", "keeper": "keeper:h:1"}
    return InferenceService(**place, policy="main", version=3, status=status, running=running)


@pytest.fixture
def writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for verbs in (store.services, store.workers):
        real = verbs.heartbeat

        async def counted(document: Any, real: Any = real) -> None:
            counts[document.collection] += 1
            await real(document)

        monkeypatch.setattr(verbs, "heartbeat", counted)
    return counts


async def test_what_changed_is_written_at_once_and_the_rest_is_not(store: Store, writes: Counter[str]) -> None:
    reports = Reports(store, Activity())
    for running in (0, 0, 5, 5, 5):
        await reports.write(service(running=running), {})
    assert writes == {"inference_services": 2, "workers": 1}
    await reports.write(service(ServiceStatus.UPDATING, 5), {})
    assert writes == {"inference_services": 3, "workers": 2}
    (stored,) = await store.services.all()
    assert (stored.status, stored.running) == (ServiceStatus.UPDATING, 5)


async def test_without_a_change_both_are_written_again_after_a_while(
    store: Store, writes: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "UNCHANGED_S", 0.05)
    reports = Reports(store, Activity())
    await reports.write(service(), {})
    before = (await store.services.all())[0].heartbeat
    await asyncio.sleep(0.06)  # longer than the interval
    await reports.write(service(), {})
    after = (await store.services.all())[0].heartbeat
    assert writes == {"inference_services": 2, "workers": 2}
    assert before is not None
    assert after is not None
    assert after > before


async def test_an_engine_that_works_is_written_again_sooner_than_an_idle_one(
    store: Store, writes: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "HEARTBEAT_S", 0.05)
    reports = Reports(store, Activity())
    for running in (0, 0, 3, 3):
        await reports.write(service(running=running), {})
        await asyncio.sleep(0.06)  # longer than the interval of an engine that works
    assert writes == {"inference_services": 3, "workers": 3}
