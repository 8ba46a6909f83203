"""An engine that releases its memory for a while, as a keeper has it do: pause, release, resume, update, continue.

The real SGLang 0.5.23 on a CPU answers as here and releases nothing, since torch_memory_saver exists for GPUs alone; with
--enable-memory-saver it does not start there. On a GPU it releases.
"""

import asyncio
from pathlib import Path

import httpx
import pytest

from sampler.core.engines.client.engine_client import EngineClient
from tests.contract.engines import Engine, started
from tests.contract.flights import LENGTH, LONG, PROMPTS, Until, held, take_off, tries

ALL = ["kv_cache", "weights", "cuda_graph"]


async def test_requests_in_flight_continue_token_exact_after_a_sleep(
    engine: Engine, client: EngineClient, until: Until
) -> None:
    """Retracted requests wait in the engine; afterwards they go on under the new weights."""

    def start() -> list[asyncio.Task[object]]:
        asked = (client.generate(engine.url, p, LONG, rid=f"sleep-{k}-{id(p)}") for k, p in enumerate(PROMPTS[:4]))
        return [asyncio.create_task(one) for one in asked]

    requests = await held(engine, client, until, start, mode="retract")
    await client.release_memory(engine.url)
    assert not any(request.done() for request in requests)
    await client.resume_memory(engine.url)
    await client.update_weights_from_disk(engine.url, str(engine.weights(engine.label + 1)), engine.label + 1)
    await client.resume(engine.url)
    for prompt, found in zip(PROMPTS[:4], await asyncio.wait_for(asyncio.gather(*requests), 120), strict=True):
        assert [version for version, _ in found.version_runs] == [engine.label, engine.label + 1]
        assert len(found.output_ids) == LENGTH
        engine.reference.assert_truthful(prompt, found)


async def test_aborted_requests_keep_their_tokens_and_the_engine_sleeps(
    engine: Engine, client: EngineClient, until: Until
) -> None:
    for number in tries():
        asked = client.generate(engine.url, PROMPTS[0], LONG, rid=f"cut-{engine.label}-{number}")
        request = asyncio.create_task(asked)
        await take_off(engine, until, [request])
        await client.pause(engine.url, "abort")
        found = await asyncio.wait_for(request, 60)
        if found.finish_reason == "abort":
            break
        await client.resume(engine.url)  # it was too fast
    assert 0 < len(found.output_ids) < LENGTH
    engine.reference.assert_truthful(PROMPTS[0], found)
    await client.release_memory(engine.url)
    await client.resume_memory(engine.url)
    await client.update_weights_from_disk(engine.url, str(engine.models[0]), engine.label + 2)
    await client.resume(engine.url)
    after = await client.generate(engine.url, PROMPTS[0], {"max_new_tokens": 8, "ignore_eos": True}, rid="after-sleep")
    assert after.version_runs == [[engine.label + 2, 8]]
    engine.reference.assert_truthful(PROMPTS[0], after)


async def test_it_may_be_released_twice_and_in_parts(engine: Engine, client: EngineClient) -> None:
    await client.pause(engine.url, "retract")
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        for tags in (["kv_cache"], ["weights"], ALL, None):
            answer = await http.post("/release_memory_occupation", json={"tags": tags})
            assert (answer.status_code, answer.json()) == (200, None)
        for tags in (["weights"], ["kv_cache"], ["cuda_graph"]):
            answer = await http.post("/resume_memory_occupation", json={"tags": tags})
            assert (answer.status_code, answer.json()) == (200, None)
        for path in ("/release_memory_occupation", "/resume_memory_occupation"):
            assert (await http.post(path)).status_code == 400, "a body is required"
    await client.update_weights_from_disk(engine.url, str(engine.models[0]), engine.label)
    await client.resume(engine.url)
    found = await client.generate(engine.url, PROMPTS[1], {"max_new_tokens": 8, "ignore_eos": True}, rid="parts")
    engine.reference.assert_truthful(PROMPTS[1], found)


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.parametrize("kind", ["local", pytest.param("sglang", marks=pytest.mark.thorough)])
async def test_resuming_what_was_not_released_ends_sglang_and_does_nothing_here(
    kind: str, models: tuple[Path, Path], until: Until, tmp_path: Path
) -> None:
    """So a keeper never resumes an engine of which it does not know that it sleeps."""
    with started(kind, models[0], tmp_path / "engine.log") as (url, process):
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            if kind == "local":
                assert (await http.post("/resume_memory_occupation", json={})).status_code == 200
                assert (await http.get("/model_info")).status_code == 200
                return
            with pytest.raises(httpx.TransportError):
                await http.post("/resume_memory_occupation", json={})

        async def has_ended() -> bool:
            return process.poll() is not None

        await until(has_ended, 60)
        assert "KeyError: 'kv_cache'" in (tmp_path / "engine.log").read_text()
