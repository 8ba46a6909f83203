"""A keeper over an engine, in this process, observed from outside through the database and the pool."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from safetensors.torch import load_file

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from sampler.core.engines.pool.engines import Engines
from sampler.core.engines.pool.progress import EngineReply
from sampler.engine.keeper.cache import own_folder
from sampler.engine.keeper.keeper import Keeper, KeeperConfig
from sampler.engine.keeper.pulling import PulledVersions
from sampler.settings import SamplerConfig
from shared.documents.run import InferenceService, PolicyVersion
from shared.documents.states import ServiceStatus
from shared.store import Store
from shared.weights.assembly import Assembly
from shared.weights.files import WEIGHTS_FILE, manifest_of
from tests.contract.engines import Engine
from tests.contract.flights import LENGTH, LONG, PROMPTS, Requests, Until, held

POLICY = "main"
SHORT: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
TENSORS = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.norm.weight",
)


class Wire(httpx.AsyncBaseTransport):
    """The real transport; records the requested routes. `tamper` may change a request's body."""

    def __init__(self, tamper: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None) -> None:
        self.asked: list[str] = []
        self._tamper = tamper
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self._tamper and request.content:
            body = self._tamper(request.url.path, json.loads(request.content))
            request = httpx.Request(request.method, request.url, json=body, extensions=request.extensions)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Held(Wire):
    """Delays updates from disk until released."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/update_weights_from_disk":
            await asyncio.wait_for(self.let_go.wait(), 60)
        return await super().handle_async_request(request)


class Kept:
    """An engine with a keeper, as samplers see it: through the database. Version 0 and every even one is `models[0]`."""

    # 7 parameters: what it is made of; `config`: its keeper's
    def __init__(
        self, engine: Engine, store: Store, client: EngineClient, pool: EnginePool, until: Until, config: KeeperConfig
    ) -> None:
        self.engine, self.store, self.client, self.pool, self._until = engine, store, client, pool, until
        self._config = config

    async def service(self) -> InferenceService:
        (found,) = await self._services()
        return found

    async def _services(self) -> list[InferenceService]:
        return await services_of(self.store, self._config)

    async def serves(self, version: int) -> None:
        async def ask() -> bool:
            return [(s.version, s.status) for s in await self._services()] == [(version, ServiceStatus.UP)]

        await self._until(ask)

    async def error_with(self, words: str) -> str:
        """The error that the keeper reports, once it contains these words."""
        found = ""

        async def told() -> bool:
            nonlocal found
            found = (await self.service()).error or ""
            return words in found

        await self._until(told)
        return found

    async def announce(self, folder: Path) -> int:
        return (await self.store.versions.announce(self._config.policy, 1, str(folder), manifest_of(folder))).version

    def start(self) -> Requests:
        """Long requests over the pool."""
        return [
            asyncio.create_task(self.pool.generate(prompt, LONG, rid=f"kept-{i}")) for i, prompt in enumerate(PROMPTS)
        ]

    async def fly(self) -> Requests:
        """Long requests in flight, held by a pause in place until the keeper, or the test, continues the engine."""
        return await held(self.engine, self.client, self._until, self.start)

    async def land(self, flight: Requests) -> list[EngineReply]:
        """All complete replies; checks that every token is exact under its recorded version."""
        replies = list(await asyncio.wait_for(asyncio.gather(*flight), 120))
        for prompt, reply in zip(PROMPTS, replies, strict=True):
            assert len(reply.generation.output_ids) == LENGTH
            self.engine.reference.assert_truthful(prompt, reply.generation)
        return replies

    async def ask(self) -> EngineReply:
        reply = await asyncio.wait_for(self.pool.generate(PROMPTS[0], SHORT, rid="short"), 60)
        self.engine.reference.assert_truthful(PROMPTS[0], reply.generation)
        return reply


async def services_of(store: Store, config: KeeperConfig) -> list[InferenceService]:
    found = await store.services.live(config.policy)
    return [s for s in found if (s.url, s.serve_version) == (config.engine_url, config.serve_version)]


@asynccontextmanager
async def keeping(
    engine: Engine,
    store: Store,
    until: Until,
    wire: Wire | None = None,
    *,
    first: int = 0,
    key: str | None = None,
    **options: Any,
) -> AsyncIterator[Kept]:
    """A keeper of the engine, once it serves version `first`. `key`: the engine's API key."""
    config = KeeperConfig(
        run=store.run,
        db_connection_string="(open already)",
        model_name_or_path=engine.models[0],
        engine_url=engine.url,
        poll_s=0.05,
        heartbeat_s=0.05,
        **options,
    )

    async def refresh() -> Sequence[Service]:
        return await services_of(store, config)

    stop = asyncio.Event()
    name = f"tandem-{store.run}-{config.policy}-{config.serve_version}-{urlsplit(engine.url).port}"
    cache = Path(tempfile.gettempdir()) / name
    async with EngineClient(transport=wire, api_key=key) as keepers, EngineClient(api_key=key) as samplers:
        kept = Kept(
            engine, store, samplers, EnginePool(samplers, refresh, PoolLimits(refresh_s=0.05, wait_s=60)), until, config
        )
        with own_folder(cache) as folder:
            assembly = Assembly(folder / "assembled", engine.models[0])

            async def keep() -> None:
                async with PulledVersions(store, config, folder / "pulled") as pulled:
                    await Keeper(store, keepers, config, assembly, pulled).run(stop)

            task = asyncio.create_task(keep(), name="keeper")
            try:
                await kept.serves(first)
                yield kept
            finally:
                stop.set()
                await asyncio.wait_for(task, 60)
                await kept.pool.close()
    shutil.rmtree(cache)


@asynccontextmanager
async def sampling(kept: Kept) -> AsyncIterator[EnginePool]:
    """The pool as a sampler process creates it, over its own list of engines; `kept` sends through it."""
    model = kept.engine.models[0]
    config = SamplerConfig(run=kept.store.run, db_connection_string="(open already)", model_name_or_path=model)
    async with EngineClient() as client:
        engines = Engines(kept.store, client, config)
        kept.pool = engines.policy_clients[POLICY].pool
        yield kept.pool
        await engines.close()


async def assert_serves(kept: Kept, version: int) -> None:
    """By its own word, by its log-probs, and bit for bit. SGLang does not give out the weights of this model's class."""
    await kept.serves(version)
    assert (await kept.ask()).generation.version_runs == [[version, 8]]
    expected = load_file(kept.engine.weights(version) / WEIGHTS_FILE)
    async with httpx.AsyncClient(base_url=kept.engine.url) as http:
        for name in TENSORS if kept.engine.kind == "local" else ():
            answer = await http.post("/get_weights_by_name", json={"name": name, "truncate_size": 1 << 20}, timeout=60)
            found = torch.tensor(answer.json(), dtype=torch.float32)
            assert torch.equal(found.view(torch.int32), expected[name].view(torch.int32)), name


async def assert_damage_is_told_and_passed(
    kept: Kept,
    announce_damaged: Callable[[str], Awaitable[PolicyVersion]],
    announce_whole: Callable[[str], Awaitable[PolicyVersion]],
    kinds: Sequence[str],
) -> None:
    """A version damaged in each of the `kinds`, whose name is in the keeper's error, is never loaded; the next whole one is."""
    for kind in kinds:
        bad = await announce_damaged(kind)
        assert f"version {bad.version} cannot be assembled" in await kept.error_with(kind)
        service = await kept.service()
        assert (service.status, service.needs_full_weights) == (ServiceStatus.UP, bad.version)
        await assert_serves(kept, bad.version - 1)
        whole = await announce_whole(kind)
        await assert_serves(kept, whole.version)
        service = await kept.service()
        assert (service.error, service.needs_full_weights) == (None, None)
