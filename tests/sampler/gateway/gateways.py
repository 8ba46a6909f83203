"""The gateway as a process of its own, in the test's process: any number of them on one database, with a scripted engine."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
from openai import AsyncOpenAI

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.service.process import ServiceProcess
from sampler.gateway.service import GatewayService
from sampler.settings import GatewayConfig
from shared.documents import DispatchedSamplingTask, Record
from shared.store import Store
from tests.sampler.episodes import MODEL
from tests.sampler.gateway.agents import ScriptedEngine
from tests.sampler.running import engine_is_up
from tests.shared.builders import import_tasks


class Gateway:
    """`service` may be left alone, as a killed process leaves its clients; `http`: a client of its address."""

    def __init__(self, service: GatewayService, http: httpx.AsyncClient, url: str) -> None:
        self.service, self.http, self.url = service, http, url
        self._sdks: list[AsyncOpenAI] = []

    async def claim(self, **body: Any) -> dict[str, Any]:
        answer = await self.http.post("/claim", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]  # JSON of our own

    async def finish(self, key: str, **body: Any) -> httpx.Response:
        return await self.http.post("/finish", json=body, headers={"authorization": f"Bearer {key}"})

    def sdk(self, key: str, **options: Any) -> AsyncOpenAI:
        sdk = AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, **({"max_retries": 0} | options))
        self._sdks.append(sdk)
        return sdk

    def is_killed(self) -> None:
        """It renews and cancels nothing any more, though its engine goes on waiting."""
        self.service._attempts._attempts.clear()

    async def close(self) -> None:
        for sdk in self._sdks:
            await sdk.close()


@asynccontextmanager
async def gateway(store: Store, engine: Any, **options: Any) -> AsyncIterator[Gateway]:
    values = {"run": store.run, "db_connection_string": "x", "model_name_or_path": MODEL, "open_all_tasks": True}
    config = GatewayConfig.model_validate(values | {"gateway_port": 0, "max_turns": 20, "grace_s": 1.0} | options)
    await engine_is_up(store)
    handlers = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            EngineClient(transport=httpx.MockTransport(engine)) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            process = ServiceProcess(store, client, f"gateway:{url}")
            service = GatewayService(process, config, listener, config.gateway.gateway_token)
            running = asyncio.create_task(service.run())
            one = Gateway(service, http, url)
            try:
                yield one
            finally:
                await one.close()
                service._stop.set()
                await running
                for sig, handler in handlers.items():
                    asyncio.get_running_loop().remove_signal_handler(sig)
                    signal.signal(sig, handler)


async def tasks(store: Store, count: int = 1) -> None:
    await import_tasks(store, count, num_generations=1)


async def documents(store: Store, record_id: str) -> tuple[Record, list[DispatchedSamplingTask]]:
    record = await store.records.get(record_id)
    assert record is not None
    return record, (await store.records.dispatches_of([record_id]))[record_id]


@asynccontextmanager
async def waiting(request: Coroutine[Any, Any, Any], engine: ScriptedEngine) -> AsyncIterator[None]:
    """The request waits at this engine during the block, as one whose gateway was killed; then its client leaves."""
    asking = asyncio.create_task(request)
    await engine.asked.wait()
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.wait([asking])
