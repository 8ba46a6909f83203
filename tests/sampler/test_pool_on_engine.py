"""The client and the pool against a real engine over HTTP: weights change during a reply, an engine is killed during a reply."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from sampler.core.engines.pool.progress import EngineReply
from sampler.core.errors import ContextTooLong, EngineContractBroken, EngineRefused
from tests.sampler.engine.local.harness import CONTEXT, Server, run_engine, write_model
from tests.sampler.engines import Up

PROMPT = list(range(20, 60))
LONG: dict[str, Any] = {"max_new_tokens": 200, "temperature": 1.0, "ignore_eos": True}
LIMITS = PoolLimits(refresh_s=0.05, backoff_s=0.05, suspect_s=10, wait_s=30)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_model(tmp_path_factory.mktemp("model"), seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def engine(models: list[Path]) -> Iterator[Server]:
    with run_engine(models[0], "--weight-version", "1") as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient() as client:
        yield client


def pool_over(client: EngineClient, services: Sequence[Service]) -> EnginePool:
    async def refresh() -> Sequence[Service]:
        return services

    return EnginePool(client, refresh, LIMITS)


async def held(client: EngineClient, pool: EnginePool, server: Server) -> "asyncio.Task[EngineReply]":
    """A long reply of which some tokens are sampled; a pause in place keeps it from ending before the test goes on."""
    for _ in range(20):  # on a busy machine it may end before it is paused
        replying = asyncio.create_task(pool.generate(PROMPT, LONG, rid="episode"))
        await asyncio.to_thread(
            server.wait_until, lambda r=replying: r.done() or server.used_tokens() >= len(PROMPT) + 10
        )
        await client.pause(server.url, "in_place")
        if (await client.load(server.url)).running == 1:
            return replying
        await client.resume(server.url)
        await replying
    pytest.fail("too fast to be caught, 20 times")


async def test_a_reply_cut_by_new_weights_continues_under_the_next_version(
    client: EngineClient, engine: Server, models: list[Path]
) -> None:
    pool = pool_over(client, [Up(engine.url)])
    replying = await held(client, pool, engine)
    await client.pause(engine.url, "abort")
    await client.update_weights_from_disk(engine.url, str(models[1]), 2)
    await client.resume(engine.url)
    reply = await replying
    (cut,) = (continuation for continuation in reply.continuations if continuation.n_tokens)
    assert reply.generation.version_runs == [[1, cut.n_tokens], [2, 200 - cut.n_tokens]]
    assert (reply.generation.finish_reason, reply.generation.prompt_tokens) == ("length", len(PROMPT))
    assert len(reply.generation.logprobs) == 200
    assert (await client.model_info(engine.url)).weight_version == "2"


async def test_a_cancelled_episode_leaves_nothing_running(client: EngineClient, engine: Server) -> None:
    pool = pool_over(client, [Up(engine.url)])
    replying = await held(client, pool, engine)
    replying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replying
    await pool.close()
    await asyncio.to_thread(engine.wait_until, lambda: engine.running() == 0)
    await client.resume(engine.url)


async def test_another_engine_takes_over_when_one_is_killed_in_mid_reply(
    client: EngineClient, engine: Server, models: list[Path]
) -> None:
    with run_engine(models[0], "--weight-version", "1") as doomed:
        pool = pool_over(client, [Up(doomed.url), Up(engine.url, running=5)])
        replying = await held(client, pool, doomed)
        doomed.process.kill()
        reply = await replying
        await pool.close()
    assert (reply.generation.url, reply.failures) == (engine.url, 1)
    assert len(reply.generation.output_ids) == 200


async def test_an_engines_refusals_are_distinguished(client: EngineClient, engine: Server) -> None:
    with pytest.raises(ContextTooLong):
        await client.generate(engine.url, [20] * (CONTEXT + 10), {"max_new_tokens": 1}, rid="too-long")
    with pytest.raises(EngineRefused):
        await client.generate(engine.url, [20], {"max_new_tokens": -1}, rid="negative")
    with pytest.raises(EngineRefused):
        await client.update_weights_from_disk(engine.url, "no/such/folder", 3)


async def test_weights_without_a_number_are_refused_with_the_remedy(client: EngineClient, engine: Server) -> None:
    before = (await client.model_info(engine.url)).weight_version
    engine.ok("/update_weight_version", {"new_version": "default", "abort_all_requests": False})
    try:
        with pytest.raises(EngineContractBroken, match="keeper"):
            await client.generate(engine.url, [20], {"max_new_tokens": 1}, rid="unlabelled")
    finally:
        engine.ok("/update_weight_version", {"new_version": before, "abort_all_requests": False})
