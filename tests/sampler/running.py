"""The sampler service in the test's own process, against a real store, and how a test waits for a state of the database."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.episode.sampler import AsyncSampler
from sampler.core.service.kinds import SamplerKinds
from sampler.core.service.process import ServiceProcess
from sampler.core.service.service import SamplerService
from sampler.settings import SamplerConfig
from shared.documents.run import InferenceService
from shared.documents.states import ServiceStatus
from shared.store import Store
from tests.sampler.boxes import PATIENCE_S
from tests.sampler.episodes import MODEL, says

T = TypeVar("T")


@asynccontextmanager
async def running_sampler(
    store: Store, kind: type[AsyncSampler] | None = None, **options: object
) -> AsyncIterator["asyncio.Task[None]"]:
    """The service, with an engine that answers everything at once. Yields its task. `kind`: instead of the settings' samplers."""
    values = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL, "open_all_tasks": True}
    config = SamplerConfig.model_validate(values | options)
    await engine_is_up(store)
    kinds = SamplerKinds.of(config) if kind is None else SamplerKinds(kind, {})
    handlers = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}
    transport = httpx.MockTransport(says("<answer>4</answer>", version="0"))
    async with EngineClient(transport=transport) as client:
        service = SamplerService(ServiceProcess(store, client, "w"), config, kinds)
        running = asyncio.create_task(service.run())
        try:
            yield running
        finally:
            service._stop.set()
            await running
            for sig, handler in handlers.items():
                asyncio.get_running_loop().remove_signal_handler(sig)
                signal.signal(sig, handler)


async def engine_is_up(store: Store, url: str = "http://e") -> None:
    """Its keeper's heartbeat, valid for an hour."""
    await store.services.heartbeat(
        InferenceService(
            id=url, url=url, policy="main", version=0, status=ServiceStatus.UP, capacity=64, heartbeat_s=3600
        )
    )


async def until(ask: Callable[[], Awaitable[T]], is_so: Callable[[T], object]) -> T:
    """The first answer that `is_so`."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so(answer := await ask()):  # noqa: ASYNC110 - a database has no event
            await asyncio.sleep(0.02)
    return answer
