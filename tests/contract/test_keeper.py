"""A keeper over both engines: it follows new weights in every mode, survives what would kill or spoil an engine, and asks
nothing that would hang while the engine is paused.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.engines.pool.engine_pool import LIST_AGE_S
from sampler.engine.keeper.update import drain
from shared.documents.states import ServiceStatus
from shared.store import Store
from shared.weights.files import manifest_of
from tests.contract.engines import Engine
from tests.contract.flights import LENGTH, PROMPTS, TOO_FAST, Requests, Until, any_done, take_off, tries
from tests.contract.kept import POLICY, SHORT, Wire, keeping, sampling


async def test_an_engine_with_follow_every_n_loads_only_every_nth_version(
    engine: Engine, store: Store, until: Until
) -> None:
    async with keeping(engine, store, until, wire := Wire(), follow_every=2) as kept:
        await kept.announce(engine.weights(1))
        loads, before = wire.asked.count("/v1/loads"), wire.asked.count("/update_weights_from_disk")

        async def has_looked() -> bool:  # both of its loops have the same period
            return wire.asked.count("/v1/loads") > loads + 10

        await until(has_looked)
        assert ((await kept.service()).version, (await kept.service()).follow_every) == (0, 2)
        await kept.announce(engine.weights(2))
        await kept.serves(2)
        assert wire.asked.count("/update_weights_from_disk") == before + 1


async def test_an_engine_with_serve_version_goes_back_to_it_and_stays_while_newer_ones_appear(
    engine: Engine, store: Store, until: Until
) -> None:
    async with keeping(engine, store, until) as kept:
        for version in (1, 2):
            await kept.announce(engine.weights(version))
        await kept.serves(2)
    async with keeping(engine, store, until, wire := Wire(), first=1, serve_version=1) as kept:
        assert (await kept.ask()).generation.version_runs == [[1, 8]]
        loads, before = wire.asked.count("/v1/loads"), wire.asked.count("/update_weights_from_disk")
        await kept.announce(engine.weights(3))

        async def has_looked() -> bool:  # both of its loops have the same period
            return wire.asked.count("/v1/loads") > loads + 10

        await until(has_looked)
        assert ((await kept.service()).version, (await kept.service()).serve_version) == (1, 1)
        assert wire.asked.count("/update_weights_from_disk") == before
        assert (await kept.ask()).generation.version_runs == [[1, 8]]


async def test_retract_keeps_requests_and_names_both_versions(engine: Engine, store: Store, until: Until) -> None:
    async with keeping(engine, store, until, weight_update_mode="retract") as kept:
        flight = await kept.fly()
        await kept.announce(engine.weights(1))
        for reply in await kept.land(flight):
            assert [version for version, _ in reply.generation.version_runs] == [0, 1]
            assert not reply.continuations
        await kept.serves(1)
        assert (await kept.ask()).generation.version_runs == [[1, 8]]


async def test_abort_cuts_requests_and_the_pool_continues_the_partial_replies(
    engine: Engine, store: Store, until: Until
) -> None:
    async with keeping(engine, store, until, weight_update_mode="abort") as kept:
        for version in (1 + number for number in tries()):  # on a busy machine they may end before they are cut
            flight = kept.start()
            is_caught = await take_off(engine, until, flight)
            before = kept.pool.stats.continuations
            await kept.announce(engine.weights(version))

            async def cut_or_over(flight: Requests = flight, before: int = before) -> bool:
                over = sum(request.done() for request in flight)
                return kept.pool.stats.continuations - before + over >= len(flight)

            await until(cut_or_over)
            is_caught = is_caught and not any_done(flight)
            replies = await kept.land(flight)
            await kept.serves(version)
            if is_caught:
                break
        else:
            pytest.fail(TOO_FAST)
        for reply in replies:
            (cut, *_) = (one for one in reply.continuations if one.n_tokens)
            assert reply.generation.version_runs == [[version - 1, cut.n_tokens], [version, LENGTH - cut.n_tokens]]


async def test_drain_lets_requests_finish_and_samplers_send_none_meanwhile(
    engine: Engine, store: Store, until: Until
) -> None:
    async with keeping(engine, store, until, weight_update_mode="drain") as kept, sampling(kept) as pool:
        flight = await kept.fly()
        await kept.announce(engine.weights(1))

        async def is_known() -> bool:
            return not await pool.is_up()

        await until(is_known)
        assert (await kept.service()).status is ServiceStatus.DRAINING

        async def says_why() -> bool:
            (keeper,) = await store.workers.all()
            return f"for requests in flight at {engine.url}: " in keeper.doing and "(drain_s)" in keeper.doing

        await until(says_why)
        late = asyncio.create_task(kept.ask())  # sent now, it would get version 0
        await kept.client.resume(engine.url)
        for reply in await kept.land(flight):
            assert reply.generation.version_runs == [[0, LENGTH]]
            assert not reply.continuations
        assert (await late).generation.version_runs == [[1, 8]]


async def test_an_idle_engine_is_drained_only_once_every_sampler_knows(engine: Engine) -> None:
    began = time.monotonic()
    async with EngineClient() as client:
        await drain(client, engine.url, limit_s=60, poll_s=0.01)
    assert time.monotonic() - began > LIST_AGE_S


async def test_requests_that_do_not_drain_in_time_are_retracted(engine: Engine, store: Store, until: Until) -> None:
    async with keeping(engine, store, until, weight_update_mode="drain", drain_s=0.05) as kept:
        flight = await kept.fly()
        await kept.announce(engine.weights(1))
        for reply in await kept.land(flight):
            assert [version for version, _ in reply.generation.version_runs] == [0, 1]


# ---------------------------------------------------------------- files that would kill or spoil an engine


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    how(tensors)
    save_file(tensors, folder / "model.safetensors")


CHANGES = ("/pause_generation", "/update_weights_from_disk", "/continue_generation")
NORM = "model.norm.weight"
SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-999]),
        "not a whole safetensors file",
    ),
    "empty": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "not a whole safetensors file"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "Cannot find any model weights"),
    "wrong shape": (
        lambda folder: change(folder, lambda tensors: tensors.update({NORM: torch.ones(65)})),
        "model.norm.weight has shape (65,); expected (128,)",
    ),
    "wrong dtype": (
        lambda folder: change(folder, lambda tensors: tensors.update({NORM: tensors[NORM].int()})),
        "model.norm.weight is int32; expected float32",
    ),
    "missing tensor": (lambda folder: change(folder, lambda tensors: tensors.pop(NORM)), "lacks 1 of"),
    "extra tensor": (
        lambda folder: change(folder, lambda tensors: tensors.update({"model.extra": torch.ones(2)})),
        "holds 1 tensors this model does not have: model.extra",
    ),
}


@pytest.fixture
def candidate(engine: Engine, tmp_path: Path) -> Path:
    shutil.copytree(engine.models[1], tmp_path / "candidate")
    return tmp_path / "candidate"


async def test_files_that_would_crash_or_corrupt_an_engine_never_reach_it(
    engine: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    """Their checksums are as announced: the writer was faulty. Truncated and wrong-shaped ones end
    SGLang's process, missing and extra tensors are a success to it; the local engine would answer 400 to each, if it were asked.
    """
    wire = Wire()
    async with keeping(engine, store, until, wire) as kept:
        before = [path for path in wire.asked if path in CHANGES]
        for name, (spoil, words) in SPOILT.items():
            folder = tmp_path / name
            shutil.copytree(engine.models[1], folder)
            spoil(folder)
            await kept.announce(folder)

            async def told(words: str = words) -> bool:
                return words in ((await kept.service()).error or "")

            await until(told)
            service = await kept.service()
            assert (service.version, service.status) == (0, ServiceStatus.UP), name
            assert (await kept.ask()).generation.version_runs == [[0, 8]], name
            assert [path for path in wire.asked if path in CHANGES] == before, f"{name}: the engine was not even paused"
        shutil.copytree(engine.models[1], tmp_path / "sound")
        version = await kept.announce(tmp_path / "sound")
        await kept.serves(version)
        assert (await kept.service()).error is None


async def test_a_file_that_changed_after_it_was_announced_is_not_served(
    engine: Engine, store: Store, until: Until, candidate: Path
) -> None:
    async with keeping(engine, store, until) as kept:
        manifest = manifest_of(candidate)
        whole = (candidate / "model.safetensors").read_bytes()
        (candidate / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        await store.versions.announce(POLICY, 1, str(candidate), manifest)

        async def told() -> bool:
            return "sha256 is" in ((await kept.service()).error or "")

        await until(told)
        assert (await kept.ask()).generation.version_runs == [[0, 8]]


# ---------------------------------------------------------------- an engine that is paused, or whose cache is stale


async def test_a_400_that_changed_the_weights_still_leads_to_the_wanted_version(
    engine: Engine, store: Store, until: Until
) -> None:
    """The keeper's pause for the update is turned into one that keeps the cache, as if another client had continued and paused
    the engine. SGLang then loads the weights and answers 400; the others refuse, and stay at the version they have.
    """
    paused: list[str] = []

    def in_place_at_the_update(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path != "/pause_generation":
            return body
        paused.append(body["mode"])
        return {"mode": "in_place"} if len(paused) == 2 else body  # the first was for version 0

    wire = Wire(in_place_at_the_update)
    async with keeping(engine, store, until, wire) as kept:
        flight = await kept.fly()
        await kept.announce(engine.weights(1))
        if engine.kind != "sglang":
            for reply in await kept.land(flight):
                assert reply.generation.version_runs == [[0, LENGTH]]
            await kept.error_with("Weights were not updated")
            service = await kept.service()
            assert (service.version, service.status) == (0, ServiceStatus.UP)
        else:
            await kept.serves(1)
            replies = await asyncio.wait_for(asyncio.gather(*flight), 120)
            for prompt, reply in zip(PROMPTS, replies, strict=True):
                assert len(reply.generation.output_ids) == LENGTH
                assert [version for version, _ in reply.generation.version_runs] == [0, 1]
                # The one token being sampled meanwhile has the new label; all others have correct labels.
                assert len(engine.reference.untrue(prompt, reply.generation)) <= 1
            assert paused == ["retract", "retract", "retract"]
            assert wire.asked.count("/flush_cache") == 1
            assert (await kept.ask()).generation.version_runs == [[1, 8]]


async def test_an_engine_that_reports_a_wrong_version_serves_nothing_until_it_reports_the_right_one(
    engine: Engine, store: Store, until: Until
) -> None:
    """Both updates succeed for the keeper; after the first one the label is wrong."""
    mislabelled: list[str] = []

    def mislabel(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path != "/update_weights_from_disk" or body["weight_version"] != "1" or mislabelled:
            return body
        mislabelled.append(path)
        return body | {"weight_version": "77"}

    wire = Wire(mislabel)
    async with keeping(engine, store, until, wire) as kept:
        before = len(wire.asked)
        await kept.announce(engine.weights(1))
        await kept.serves(1)
        asked = [path for path in wire.asked[before:] if path in (*CHANGES, "/model_info")]
        assert mislabelled
        told = ["/pause_generation", "/update_weights_from_disk", "/model_info"]
        assert asked == [*told, *told, "/continue_generation"], "between the two it stays paused"
        assert (await kept.ask()).generation.version_runs == [[1, 8]]


async def test_an_engine_left_paused_by_a_keeper_that_was_killed_is_continued_by_the_next(
    engine: Engine, client: EngineClient, store: Store, until: Until
) -> None:
    await client.pause(engine.url, "retract")
    async with keeping(engine, store, until) as kept:
        assert (await kept.ask()).generation.version_runs == [[0, 8]]


async def test_a_keeper_that_exits_during_an_update_leaves_the_engine_running(
    engine: Engine, client: EngineClient, store: Store, until: Until
) -> None:
    wire = Wire()
    async with keeping(engine, store, until, wire) as kept:
        await kept.announce(engine.weights(1))

        async def pausing() -> bool:
            return wire.asked.count("/pause_generation") == 2

        await until(pausing)
    controls = [path for path in wire.asked if path in ("/pause_generation", "/continue_generation")]
    assert controls[-2:] == ["/pause_generation", "/continue_generation"]
    found = await client.generate(engine.url, PROMPTS[0], SHORT, rid="after")
    engine.reference.assert_truthful(PROMPTS[0], found)


async def test_a_keeper_never_requests_health(engine: Engine, store: Store, until: Until) -> None:
    """SGLang's `/health` runs a generation, and hangs for 20 s while paused."""
    wire = Wire()
    async with keeping(engine, store, until, wire) as kept:
        await kept.announce(engine.weights(1))
        await kept.serves(1)
    assert {"/pause_generation", "/update_weights_from_disk", "/model_info", "/v1/loads"} <= set(wire.asked)
    assert not [path for path in wire.asked if "health" in path]
