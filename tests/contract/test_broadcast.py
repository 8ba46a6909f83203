"""Published weights over the network, by the trainer's real sender: to both kinds of engine, to two engines at once, and where
an engine or the sender is missing, dies in the middle or stands still. In every case an engine ends with the published bytes.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from sampler.core.engines.client.engine_client import EngineClient
from sampler.core.errors import EngineRefused, EngineUnavailable
from sampler.engine.keeper.update import update
from shared.documents.offers import Joined
from shared.documents.states import OfferState, ServiceStatus
from shared.store import Store
from shared.weights.files import WEIGHTS_FILE, manifest_of
from tests.contract.broadcasting import SETTINGS, UPDATE, HeldSecond, assert_holds, senders, training
from tests.contract.engines import START_S, Engine, Reference, started
from tests.contract.flights import Until
from tests.contract.kept import POLICY, Wire, keeping
from trainer.publishing.broadcast import Broadcaster


@pytest.fixture
def second(shared_engine: Engine, tmp_path: Path) -> Iterator[tuple[Engine, int]]:
    """Another local engine, and its pid, which a test may kill."""
    with started("local", shared_engine.models[0], tmp_path / "second.log") as (url, process):
        yield replace(shared_engine, kind="local", url=url), process.pid


@pytest.fixture
def only_local(shared_engine: Engine) -> None:
    """Properties of keeper and trainer alone are tested on one kind of engine."""
    if shared_engine.kind != "local":
        pytest.skip("what is tested is our trainer and keeper, the same for every engine: once, on the local one")


async def test_an_engine_receives_the_published_bytes_while_requests_are_in_flight(
    engine: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    wire = Wire()
    async with training(store, engine, tmp_path) as trainer, keeping(engine, store, until, wire) as kept:
        from_disk = wire.asked.count("/update_weights_from_disk")
        flight = await kept.fly()
        await trainer.publish()
        for reply in await kept.land(flight):
            assert [version for version, _ in reply.generation.version_runs] == [0, 1]
        for version in (1, 2, 3):
            if version > 1:
                await trainer.publish()
            await kept.serves(version)
            assert (await kept.ask()).generation.version_runs == [[version, 8]]
            offer = (await trainer.ended(until)).offer
            assert offer is not None
            assert (offer.state, [one.service for one in offer.joined]) == (OfferState.SENT, [engine.url])
            metrics = trainer.broadcaster.take_metrics()
            size = (engine.weights(version) / WEIGHTS_FILE).stat().st_size
            assert size - 10_000 < metrics["publish/broadcast_bytes"] < size
            assert (metrics["publish/broadcast_engines"], metrics["publish/broadcast_failed"]) == (1, 0)
        (worker,) = await store.workers.live()
        assert worker.stats["update_broadcast_bytes"] == metrics["publish/broadcast_bytes"]
        assert {"update_join_s", "update_engine_s"} < worker.stats.keys()
        assert wire.asked.count(UPDATE) == 3 * 4
        assert wire.asked.count("/update_weights_from_disk") == from_disk
        await assert_holds(engine, 3, every=1)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL from a sender to an engine needs two CUDA devices")
@pytest.mark.skipif(
    find_spec("sglang") is None,
    reason="needs an SGLang with CUDA beside torch; the check has the CPU one",
)
@pytest.mark.timeout(2 * START_S)
async def test_nccl_carries_the_published_bytes_to_sglang_on_another_gpu(
    models: tuple[Path, Path], store: Store, until: Until, tmp_path: Path
) -> None:
    with started("sglang-gpu", models[0], tmp_path / "engine.log") as (url, _):
        engine = Engine("sglang", url, models, Reference(models))
        async with (
            training(store, engine, tmp_path, backend="nccl", device="cuda:0") as trainer,
            keeping(engine, store, until) as kept,
        ):
            for version in (1, 2):
                await trainer.publish()
                await kept.serves(version)
                offer = (await trainer.ended(until)).offer
                assert offer is not None
                assert (offer.state, [one.service for one in offer.joined]) == (OfferState.SENT, [url])
                await assert_holds(engine, version)


async def test_the_routes_answer_as_sglang_does(engine: Engine, client: EngineClient) -> None:
    async def refused(path: str, words: str, **body: Any) -> None:
        with pytest.raises(EngineRefused, match=words):
            await client.change_weights(engine.url, path, body)

    update = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[128]], "group_name": "none"}
    await refused(UPDATE, r"must run between begin_weight_update\(\) and end_weight_update\(\)", **update)
    await refused("/end_weight_update", "no weight-update session is open")
    await client.change_weights(engine.url, "/begin_weight_update", {})
    await refused("/begin_weight_update", "a weight-update session is already open")
    await refused(UPDATE, "Group none not in", **update)
    await client.change_weights(engine.url, "/end_weight_update", {})
    await refused("/destroy_weights_update_group", "The group to be destroyed does not exist", group_name="none")


async def test_an_engine_with_weights_of_two_versions_stays_paused_if_loading_from_disk_fails_too(
    engine: Engine, tmp_path: Path
) -> None:
    wire = Wire()
    async with EngineClient(transport=wire) as watched:
        with pytest.raises(EngineUnavailable, match="it stays paused"):
            await update(watched, engine.url, tmp_path, 1, "retract", torn=True)
        assert "/continue_generation" not in wire.asked
        with pytest.raises(EngineRefused):
            await update(watched, engine.url, tmp_path, 1, "retract")
        assert wire.asked[-1] == "/continue_generation"


@pytest.mark.usefixtures("only_local")
async def test_engines_that_join_in_time_receive_one_broadcast_and_the_others_load_from_disk(
    engine: Engine, second: tuple[Engine, int], store: Store, until: Until, tmp_path: Path
) -> None:
    """One engine does not take part; another's keeper starts after the offer is closed."""
    other, _ = second
    wire, other_wire = Wire(), Wire()
    async with training(store, engine, tmp_path) as trainer, keeping(engine, store, until, wire) as kept:
        async with keeping(other, store, until, other_wire) as also:
            await trainer.publish()
            offer = (await trainer.ended(until)).offer
            assert offer is not None
            assert {one.service for one in offer.joined} == {engine.url, other.url}
            assert offer.world_size == 3
            for one in (kept, also):
                await one.serves(1)
                await assert_holds(one.engine, 1)
            assert (wire.asked.count(UPDATE), other_wire.asked.count(UPDATE)) == (4, 4)
        async with keeping(other, store, until, other_wire, first=1, weight_transport="disk") as also:
            await trainer.publish()
            await kept.serves(2)
            await also.serves(2)
            await assert_holds(other, 2)
        async with keeping(other, store, until, other_wire, first=2) as also:
            await assert_holds(other, 2)
        assert (wire.asked.count(UPDATE), other_wire.asked.count(UPDATE)) == (8, 4)


@pytest.mark.usefixtures("only_local")
async def test_if_an_engine_is_killed_during_a_broadcast_the_others_load_from_disk(
    engine: Engine, second: tuple[Engine, int], store: Store, until: Until, tmp_path: Path
) -> None:
    other, pid = second
    held = HeldSecond(UPDATE)  # between two buckets
    async with training(store, engine, tmp_path) as trainer, keeping(engine, store, until) as kept:
        async with keeping(other, store, until, held) as dying:
            await trainer.publish()
            await asyncio.wait_for(held.reached.wait(), 60)
            os.kill(pid, signal.SIGKILL)
            held.let_go.set()
            await kept.serves(1)
            await assert_holds(engine, 1)
            offer = (await trainer.ended(until)).offer
            assert offer is not None
            assert offer.state is OfferState.FAILED
            assert trainer.broadcaster.take_metrics()["publish/broadcast_failed"] == 1

            async def down() -> bool:
                found = await store.services.all()
                return [s.status for s in found if s.id == dying.engine.url] == [ServiceStatus.DOWN]

            await until(down)
            await trainer.publish()  # in a separate group, with a separate sender
            await kept.serves(2)
            await assert_holds(engine, 2)
        offer = (await trainer.ended(until)).offer
        assert offer is not None
        assert (offer.state, [one.service for one in offer.joined]) == (OfferState.SENT, [engine.url])


@pytest.mark.usefixtures("only_local")
async def test_a_sender_killed_during_a_broadcast_leaves_every_engine_with_the_published_bytes(
    engine: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    """The same as when its trainer is killed: the sender ends with its parent."""
    held = HeldSecond(UPDATE)  # between two buckets
    async with training(store, engine, tmp_path) as trainer, keeping(engine, store, until, held) as kept:
        await trainer.publish()
        await asyncio.wait_for(held.reached.wait(), 60)
        (pid,) = senders()
        os.kill(pid, signal.SIGKILL)
        held.let_go.set()
        await kept.serves(1)
        await assert_holds(engine, 1)
        offer = (await trainer.ended(until)).offer
        assert offer is not None
        assert offer.state is OfferState.FAILED
        await trainer.publish()
        await kept.serves(2)
        assert (await trainer.ended(until)).offer != offer
        assert held.asked.count(UPDATE) == 2 + 4


@pytest.mark.usefixtures("only_local")
async def test_an_offer_of_an_exited_trainer_delays_no_engine(
    engine: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    """The trainer exits before closing the offer; its port is closed, or taken by another process."""
    async with training(store, engine, tmp_path, join_s=0.5) as trainer, keeping(engine, store, until) as kept:
        offer = await trainer.broadcaster.offer()
        assert offer is not None
        for version, found in ((1, offer), (2, offer.model_copy(update={"port": 1}))):
            path = tmp_path / f"abandoned-{version}"
            shutil.copytree(engine.weights(version), path)
            await store.versions.announce(POLICY, version, str(path), manifest_of(path), offer=found)
            await kept.serves(version)
            await assert_holds(engine, version)
        assert await store.versions.fail_broadcasts(POLICY, 1) == 2, "as the next trainer does when it starts"


@pytest.mark.usefixtures("only_local")
async def test_an_engine_that_never_joins_delays_the_others_only_briefly(
    engine: Engine, store: Store, until: Until, tmp_path: Path
) -> None:
    async with training(store, engine, tmp_path, join_s=2.0) as trainer, keeping(engine, store, until) as kept:
        silent = (await kept.service()).model_copy(update={"id": "silent", "url": "silent"})
        await store.services.heartbeat(silent)
        await trainer.publish()
        await trainer.publish(offer=False)  # while that offer is open; the engine joins the newest one for it
        offer = (await trainer.ended(until)).offer if (await trainer.announced()).offer else None
        assert offer is None
        await kept.serves(2)
        await assert_holds(engine, 2)


async def test_joining_twice_counts_once_and_joining_late_is_refused(store: Store) -> None:
    broadcaster = Broadcaster(store, POLICY, SETTINGS)
    offer = await broadcaster.offer()
    version = await store.versions.announce(POLICY, 1, "there", {}, offer=offer)

    async def joins(service: str, ranks: int = 1) -> bool:
        return await store.versions.join_broadcast(POLICY, version.version, Joined(service=service, ranks=ranks))

    assert [await joins("a", 2), await joins("a", 2), await joins("b")] == [True, True, True]
    closed = await store.versions.close_broadcast(POLICY, version.version)
    assert (closed.state, closed.world_size) == (OfferState.SENDING, 4)
    assert [closed.rank_of(name) for name in ("a", "b", "c")] == [1, 3, None]
    assert [await joins("c"), await joins("a", 2)] == [False, True]
    empty = await store.versions.announce(POLICY, 2, "elsewhere", {}, offer=offer)
    assert (await store.versions.close_broadcast(POLICY, empty.version)).state is OfferState.UNUSED
    await broadcaster.end()
