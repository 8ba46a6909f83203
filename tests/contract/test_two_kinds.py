"""Two kinds of engine in one run at once: the local one together with the real SGLang or vLLM, each under a keeper."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import EnginePool, PoolLimits, Service
from sampler.core.engines.pool.progress import EngineReply
from shared.store import Store
from tests.contract.engines import Engine, running
from tests.contract.flights import LENGTH, LONG, PROMPTS, TOO_FAST, Until, take_off, tries
from tests.contract.kept import SHORT, Kept, keeping, sampling
from tests.sampler.engines import Up


@pytest.fixture
def local(shared_engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    """A local engine; `engine` is of another kind."""
    if shared_engine.kind == "local":
        pytest.skip("two kinds are tested with SGLang and vLLM")
    with running("local", shared_engine.models[0], tmp_path / "local.log") as url:
        yield Engine("local", url, shared_engine.models, shared_engine.reference)


@pytest.fixture
async def both(local: Engine, engine: Engine, store: Store, until: Until) -> AsyncIterator[tuple[Kept, Kept]]:
    async with AsyncExitStack() as stack:
        kept = [await stack.enter_async_context(keeping(one, store, until)) for one in (local, engine)]
        yield kept[0], kept[1]


@pytest.mark.thorough
async def test_one_pool_samples_from_both_and_every_version_reaches_both(
    both: tuple[Kept, Kept], store: Store, engine: Engine
) -> None:
    own = {kept.engine.url: kept.engine.kind for kept in both}
    assert {service.url: service.kind for service in await store.services.live("main")} == own
    async with sampling(both[0]) as pool:
        for version in (0, 1, 2):
            if version:
                await both[0].announce(engine.weights(version))
                for kept in both:
                    await kept.serves(version)
            asked = [pool.generate(prompt, SHORT, rid=f"{version}-{at}") for at, prompt in enumerate(PROMPTS)]
            replies = await asyncio.wait_for(asyncio.gather(*asked), 120)
            assert {reply.generation.url for reply in replies} == set(own), "both had room"
            for prompt, reply in zip(PROMPTS, replies, strict=True):
                assert reply.generation.version_runs == [[version, 8]]
                engine.reference.assert_truthful(prompt, reply.generation)


async def test_a_reply_that_one_kind_began_is_continued_by_the_other_and_names_both(
    local: Engine, engine: Engine, client: EngineClient, until: Until
) -> None:
    listed: list[Service] = []

    async def refresh() -> Sequence[Service]:
        return listed

    pool = EnginePool(client, refresh, PoolLimits(refresh_s=0.0, backoff_s=0.05, wait_s=60))
    for _ in tries():
        listed[:] = [Up(engine.url, capacity=64)]
        request = asyncio.create_task(pool.generate(PROMPTS[0], LONG, rid="cut"))
        await take_off(engine, until, [request])
        listed[:] = [Up(local.url, capacity=64)]
        await client.pause(engine.url, "abort")
        reply: EngineReply = await asyncio.wait_for(request, 120)
        if reply.continuations:
            break
        await client.resume(engine.url)
    else:
        pytest.fail(TOO_FAST)
    await pool.close()
    (cut, *_) = reply.continuations
    assert (cut.url, reply.generation.url) == (engine.url, local.url)
    assert 0 < cut.n_tokens < LENGTH == len(reply.generation.output_ids)
    runs = [(engine.label, cut.n_tokens), (0, LENGTH - cut.n_tokens)]
    assert [tuple(run) for run in reply.generation.version_runs] == runs
    engine.reference.assert_truthful(PROMPTS[0], reply.generation)
