"""Fixture `engine`: runs each test against the local engine, the real SGLang and the real vLLM."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from scripts.make_example_model import build_model, build_tokenizer
from shared.weights.adapters import merge_into
from shared.weights.layout import read_layout
from tests.contract.adapters import ENDS
from tests.contract.engines import MODEL, Engine, Reference, running
from tests.sampler.engines import Up
from tests.shared.adapters import random_factors, read_adapter, write_adapter

LABELS = count(2, 2)  # even: `models[0]`. Never the same twice, so that a stale label cannot pass for a fresh one


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The bundled model, and one of the same shape with random weights."""
    folder = tmp_path_factory.mktemp("random-model")
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=11).save_pretrained(folder)
    return MODEL, folder


@pytest.fixture(scope="package")
def adapters(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of the even versions, whose weights are the base's (B is 0), and of the odd ones."""
    tensors = read_layout(models[0]).tensors
    shapes = {n.removesuffix(".weight"): (t.shape[0], t.shape[1]) for n, t in tensors.items() if n.endswith(ENDS)}
    moved = random_factors(shapes, 8, 0.1)
    folder = tmp_path_factory.mktemp("adapters")
    still = {layer: (a, 0 * b) for layer, (a, b) in moved.items()}
    return write_adapter(folder / "0", still, 16.0), write_adapter(folder / "1", moved, 16.0)


@pytest.fixture(scope="package")
def merged(
    models: tuple[Path, Path], adapters: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[Path, Path], Reference]:
    folder = Path(shutil.copytree(models[0], tmp_path_factory.mktemp("merged") / "1"))
    merge_into(folder, read_adapter(adapters[1]))
    return (models[0], folder), Reference((models[0], folder))


@pytest.fixture(
    scope="package",  # not longer: during the rest of the suite it would only use memory and time
    params=[
        "local",
        pytest.param("sglang", marks=pytest.mark.timeout(360)),
        pytest.param("vllm", marks=pytest.mark.timeout(360)),
    ],
)
def shared_engine(
    request: pytest.FixtureRequest, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    kind = str(request.param)
    with running(kind, models[0], tmp_path_factory.mktemp(kind) / "engine.log") as url:
        yield Engine(kind, url, models, Reference(models))


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient() as client:
        yield client


@pytest.fixture
async def engine(shared_engine: Engine, client: EngineClient) -> Engine:
    """Resets the engine: idle, not paused, empty cache, weights of `models[0]` under a fresh label."""
    fresh = replace(shared_engine, label=next(LABELS))
    await client.pause(fresh.url, "abort")
    await client.update_weights_from_disk(fresh.url, str(fresh.models[0]), fresh.label)
    await client.resume(fresh.url)
    return fresh


@pytest.fixture
async def pool(engine: Engine, client: EngineClient) -> AsyncIterator[EnginePool]:
    async def refresh() -> Sequence[Service]:
        return [Up(engine.url, capacity=64)]

    pool = EnginePool(client, refresh, PoolLimits(backoff_s=0.05, wait_s=60))
    yield pool
    await pool.close()


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """`await until(ask, limit_s)`: repeat `ask` until it returns true, or fail."""

    async def wait(ask: Callable[[], Awaitable[bool]], limit_s: float = 60.0) -> None:
        async with asyncio.timeout(limit_s):
            while not await ask():  # noqa: ASYNC110  # it is another process that changes
                await asyncio.sleep(0.01)

    return wait
