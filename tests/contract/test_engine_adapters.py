"""Adapters that an engine serves itself: the real vLLM with --enable-lora, and keepers with `adapters: engine`.

(SGLang 0.5.23 does not start with --enable-lora without a GPU: its layers allocate pinned memory.)
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.client.generation import Generation, NamedAdapter
from sampler.core.errors import AdapterNotLoaded, EngineContractBroken, EngineRefused
from shared.store import Store
from tests.contract.adapters import Published
from tests.contract.engines import Engine, Reference, running
from tests.contract.flights import LENGTH, LONG, PROMPTS, Until
from tests.contract.flights import held as in_flight
from tests.contract.kept import POLICY, SHORT, Kept, Wire, keeping
from tests.contract.test_keeper_evaluation import play, queue
from tests.shared.adapters import random_factors, write_adapter

pytestmark = [pytest.mark.timeout(360), pytest.mark.slow]
OTHER = "judge"


@pytest.fixture(scope="module")
def lora_engine(
    merged: tuple[tuple[Path, Path], Reference], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("lora") / "engine.log"
    with running("vllm", merged[0][0], log, "--enable-lora", "--max-lora-rank", "8") as url:
        yield Engine("vllm", url, *merged)


@pytest.fixture
async def engine(lora_engine: Engine, client: EngineClient) -> AsyncIterator[Engine]:
    yield lora_engine
    await client.resume(lora_engine.url)
    for name in await client.adapters(lora_engine.url):
        await client.unload_adapter(lora_engine.url, name)


@pytest.fixture
def published(engine: Engine, store: Store, adapters: tuple[Path, Path], tmp_path: Path) -> Published:
    return Published(engine, store, adapters, tmp_path)


@pytest.fixture
async def kept(engine: Engine, store: Store, until: Until) -> AsyncIterator[Kept]:
    async with keeping(engine, store, until, adapters="engine") as kept:
        yield kept


async def runs_of(kept: Kept) -> list[list[int]]:
    """Of a short reply, whose log-probs are those of the version that it names."""
    return (await kept.ask()).generation.version_runs


async def test_a_reply_ends_with_the_adapter_that_it_began_with_and_nothing_is_paused(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    wire = Wire()
    async with keeping(engine, store, until, wire, adapters="engine") as kept:
        assert await runs_of(kept) == [[0, 8]]
        flight = await kept.fly()
        version = await published.announce()
        await kept.serves(1)
        await kept.client.resume(engine.url)
        later = kept.start()
        for requests, served in ((flight, 0), (later, 1)):
            replies = await kept.land(requests)
            assert all(reply.generation.version_runs == [[served, LENGTH]] for reply in replies)
        assert not {"/pause_generation", "/update_weights_from_disk"} & {*wire.asked}
        (worker,) = await store.workers.live()
        assert worker.stats["update_bytes"] == version.bytes_from_base > 0


async def test_an_adapter_is_unloaded_once_no_request_holds_it(
    engine: Engine, store: Store, until: Until, published: Published, client: EngineClient
) -> None:
    async with keeping(engine, store, until, adapters="engine") as kept:
        await published.announce()
        await kept.serves(1)
        flight = await kept.fly()
        for version in (2, 3):
            await published.announce()
            await kept.serves(version)
        assert await runs_of_paused(kept, engine) == [[3, 8]]

        async def newest_alone() -> bool:
            return {name.split("@")[1].split("-")[0] for name in await kept.client.adapters(engine.url)} == {"3"}

        assert {reply.generation.version_runs[0][0] for reply in await kept.land(flight)} == {1}
        await until(newest_alone)
    assert await client.adapters(engine.url) == set(), "its keeper has ended"


async def runs_of_paused(kept: Kept, engine: Engine) -> list[list[int]]:
    await kept.client.resume(engine.url)
    return await runs_of(kept)


async def test_unloading_waits_for_the_requests_that_hold_the_adapter(
    engine: Engine, client: EngineClient, adapters: tuple[Path, Path], until: Until
) -> None:
    await client.load_adapter(engine.url, "held", str(adapters[1]))
    held = NamedAdapter("held", 1)

    def start() -> list["asyncio.Task[Generation]"]:
        return [asyncio.create_task(client.generate(engine.url, PROMPTS[0], LONG, "holds", adapter=held))]

    (request,) = await in_flight(engine, client, until, start)
    unloading = asyncio.create_task(client.unload_adapter(engine.url, "held"))

    await asyncio.sleep(0.5)
    with pytest.raises(AdapterNotLoaded):
        await client.generate(engine.url, PROMPTS[0], SHORT, "late", adapter=held)
    assert not unloading.done()
    assert await client.adapters(engine.url) == set(), "of those that a new request may name"
    await client.resume(engine.url)
    engine.reference.assert_truthful(PROMPTS[0], await request)
    await unloading


async def test_two_policies_are_served_by_one_engine_at_once(
    engine: Engine, store: Store, until: Until, published: Published, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    other = Published(engine, store, adapters, tmp_path, OTHER)
    async with (
        keeping(engine, store, until, adapters="engine") as kept,
        keeping(engine, store, until, adapters="engine", policy=OTHER) as kept_other,
    ):
        await published.announce()
        await other.announce()
        await other.announce()
        await kept.serves(1)
        await kept_other.serves(2)
        flights = kept.start(), kept_other.start()
        for one, requests, version in zip((kept, kept_other), flights, (1, 2), strict=True):
            replies = await one.land(requests)
            assert all(reply.generation.version_runs == [[version, LENGTH]] for reply in replies)


async def test_an_old_version_is_served_beside_the_newest(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    async with keeping(engine, store, until, adapters="engine") as kept:
        for version in (1, 2):
            await published.announce()
            await kept.serves(version)
        async with keeping(engine, store, until, adapters="engine", serve_version=1, first=1) as old:
            for _ in range(3):
                assert (await runs_of(kept), await runs_of(old)) == ([[2, 8]], [[1, 8]])
            await published.announce()
            await kept.serves(3)
            assert await runs_of(old) == [[1, 8]]


async def test_a_round_is_played_by_its_version_while_the_newest_waits(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    """The keeper names the older adapter again, and nothing is paused; a keeper with `serve_version` is no part of it."""
    wire = Wire()
    async with keeping(engine, store, until, wire, adapters="engine") as kept:
        for version in (1, 2):
            await published.announce()
            await kept.serves(version)
        await queue(store, 1, seq=0)
        await kept.serves(1)
        assert await runs_of(kept) == [[1, 8]]
        await play(store, 1)
        await kept.serves(2)
        assert await runs_of(kept) == [[2, 8]]
        assert "/pause_generation" not in wire.asked


async def test_adapters_of_a_killed_keeper_are_unloaded_and_no_others(
    engine: Engine, store: Store, until: Until, published: Published, client: EngineClient, adapters: tuple[Path, Path]
) -> None:
    left, others = f"{store.run}.{POLICY}@9-01234567", f"another.{POLICY}@9-01234567"
    for name in (left, others):
        await client.load_adapter(engine.url, name, str(adapters[1]))
    async with keeping(engine, store, until, adapters="engine") as kept:
        await published.announce()
        await kept.serves(1)

        async def gone() -> bool:
            return left not in await client.adapters(engine.url)

        await until(gone)
        assert others in await client.adapters(engine.url)


async def test_an_adapter_that_the_engine_lost_is_loaded_again(
    engine: Engine, kept: Kept, published: Published, client: EngineClient
) -> None:
    """As after a restart of an engine that is not the keeper's."""
    await published.announce()
    await kept.serves(1)
    (name,) = await client.adapters(engine.url)
    await client.unload_adapter(engine.url, name)
    assert await runs_of(kept) == [[1, 8]]
    assert await client.adapters(engine.url) == {name}
    await kept.serves(1)


async def test_a_damaged_adapter_is_never_loaded(kept: Kept, published: Published) -> None:
    await published.announce()
    await kept.serves(1)
    await published.announce(damage=lambda file: os.truncate(file, 100))
    assert "100 bytes; expected" in await kept.error_with("copy is incomplete")
    await kept.serves(1)
    assert await runs_of(kept) == [[1, 8]]
    await published.announce()
    await kept.serves(3)


async def test_complete_weights_are_refused_with_the_reason(engine: Engine, kept: Kept) -> None:
    await kept.announce(engine.models[1])
    assert "publish_mode" in await kept.error_with("expected an adapter of version 0")
    await kept.serves(0)


async def test_a_dora_is_refused_by_the_engine_and_before_it_by_the_keeper_with_the_remedy(
    engine: Engine, store: Store, until: Until, published: Published, tmp_path: Path
) -> None:
    layer = "model.layers.0.self_attn.q_proj"
    factors, magnitudes = random_factors({layer: (128, 128)}, 8, 0.1), {layer: np.ones(128, np.float32)}
    dora = write_adapter(tmp_path / "dora", factors, 16.0, magnitudes)
    wire = Wire()
    async with keeping(engine, store, until, wire, adapters="engine") as kept:
        with pytest.raises(EngineRefused, match="DoRA"):
            await kept.client.load_adapter(engine.url, "dora", str(dora))
        asked = len(wire.asked)
        await published.announce(adapter=dora)
        assert "expected a keeper with adapters: merged" in await kept.error_with("version 1 is a DoRA (use_dora)")
        assert "/load_lora_adapter" not in wire.asked[asked:]
        await kept.serves(0)


async def test_adapters_over_another_base_are_refused_by_keeper_and_client(
    engine: Engine, store: Store, until: Until, published: Published, client: EngineClient
) -> None:
    async with keeping(engine, store, until, adapters="engine") as kept, httpx.AsyncClient(base_url=engine.url) as http:
        await published.announce()
        await kept.serves(1)
        (name,) = await client.adapters(engine.url)
        await http.post("/update_weight_version", json={"new_version": "5"})
        try:
            with pytest.raises(EngineContractBroken, match="base was version 5"):
                await client.generate(engine.url, PROMPTS[0], SHORT, "other", adapter=NamedAdapter(name, 1))
            await published.announce()
            await kept.error_with("reports version '5' of its base")
        finally:
            await http.post("/update_weight_version", json={"new_version": "0"})


async def test_a_refused_request_changes_nothing(
    engine: Engine, client: EngineClient, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    large = write_adapter(
        tmp_path / "large", random_factors({"model.layers.0.self_attn.q_proj": (128, 128)}, 64, 0.1), 1.0
    )
    await client.load_adapter(engine.url, "one", str(adapters[1]))
    for name, folder in (("two", large), ("three", tmp_path), ("four", tmp_path / "none"), ("one", adapters[0])):
        with pytest.raises(EngineRefused):
            await client.load_adapter(engine.url, name, str(folder))
    with pytest.raises(EngineRefused, match="does not exist"):
        await client.unload_adapter(engine.url, "two")
    with pytest.raises(AdapterNotLoaded):
        await client.generate(engine.url, PROMPTS[0], SHORT, "gone", adapter=NamedAdapter("two", 1))
    with pytest.raises(EngineRefused, match="adapters: engine"):
        await client.update_weights_from_disk(engine.url, str(engine.models[0]), 2)
    assert await client.adapters(engine.url) == {"one"}
    found = await client.generate(engine.url, PROMPTS[0], SHORT, "here", adapter=NamedAdapter("one", 1))
    engine.reference.assert_truthful(PROMPTS[0], found)


async def test_requests_of_many_adapters_and_of_the_base_do_not_mix(
    engine: Engine, client: EngineClient, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    """More adapters than one batch holds, whose files are deleted, on prompts whose beginning is cached."""
    named = [None, *(NamedAdapter(f"a{version}", version) for version in range(1, 7))]
    for one in filter(None, named):
        folder = shutil.copytree(adapters[one.version % 2], tmp_path / one.name)
        await client.load_adapter(engine.url, one.name, str(folder))
        shutil.rmtree(folder)
    prompt = [20 + i % 300 for i in range(200)]
    for at in range(3):
        asked = [one for one in named for _ in range(2)]
        found = await asyncio.gather(
            *(client.generate(engine.url, prompt, SHORT, f"p{at}-{i}", adapter=one) for i, one in enumerate(asked))
        )
        for one in found:
            engine.reference.assert_truthful(prompt, one)
    assert all(one.cached_tokens > 0 for one in found)
