"""A keeper over both engines with published adapters: it merges them, and loads only the announced bytes."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.store import Store
from shared.weights.adapters import ADAPTER_FOLDER, ADAPTER_WEIGHTS
from shared.weights.files import WEIGHTS_FILE, manifest_of
from tests.contract.adapters import Published
from tests.contract.engines import Engine, Reference
from tests.contract.flights import Until
from tests.contract.kept import POLICY, Held, assert_damage_is_told_and_passed, assert_serves, keeping


@pytest.fixture
def engine(engine: Engine, merged: tuple[tuple[Path, Path], Reference]) -> Engine:
    return replace(engine, models=merged[0], reference=merged[1])


@pytest.fixture
def published(engine: Engine, store: Store, adapters: tuple[Path, Path], tmp_path: Path) -> Published:
    return Published(engine, store, adapters, tmp_path)


async def test_an_engine_follows_adapters_bit_for_bit_and_reads_no_other_file(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    async with keeping(engine, store, until) as kept:
        for full in (False, False, True, False):
            version = await published.announce(full=full)
            await assert_serves(kept, version.version)
            assert ((await kept.service()).error, (await kept.service()).needs_full_weights) == (None, None)
            (worker,) = await store.workers.live()
            assert worker.stats["update_bytes"] == version.bytes_from_base > 0


async def test_every_token_in_flight_is_labelled_with_the_adapter_that_sampled_it(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    async with keeping(engine, store, until) as kept:
        flight = await kept.fly()
        await published.announce()
        await kept.serves(1)
        replies = await kept.land(flight)
        assert all([version for version, _ in reply.generation.version_runs] == [0, 1] for reply in replies)


async def test_an_engine_that_joins_late_starts_with_the_newest_version(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    await store.versions.ensure_first(POLICY, str(engine.models[0]), manifest_of(engine.models[0]))
    for _ in range(5):
        await published.announce()
    async with keeping(engine, store, until, first=5) as kept:
        await assert_serves(kept, 5)


async def test_an_engine_that_missed_ten_versions_reads_one_adapter(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    wire = Held()
    async with keeping(engine, store, until, wire) as kept:
        wire.let_go.clear()
        await published.announce()
        for _ in range(2, 12):
            version = await published.announce()
        wire.let_go.set()
        await assert_serves(kept, 11)
        assert wire.asked.count("/update_weights_from_disk") <= 3, "0, one that was under way perhaps, 11"
        (worker,) = await store.workers.live()
        assert worker.stats["update_bytes"] == version.bytes_from_base


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 16
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "sha256": flip,
    "was truncated": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "No such file": Path.unlink,
}


async def test_a_damaged_adapter_is_reported_never_loaded_and_skipped_by_the_next_version(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    async with keeping(engine, store, until) as kept:
        await assert_damage_is_told_and_passed(
            kept,
            lambda kind: published.announce(damage=DAMAGES[kind]),
            lambda kind: published.announce(full=kind == "sha256"),
            list(DAMAGES),
        )


async def test_a_late_engine_loads_the_adapter_before_a_damaged_one_and_requests_full_weights(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    await store.versions.ensure_first(POLICY, str(engine.models[0]), manifest_of(engine.models[0]))
    for number in range(1, 5):
        await published.announce(damage=flip if number == 4 else None)
    async with keeping(engine, store, until, first=3) as kept:
        await assert_serves(kept, 3)
        service = await kept.service()
        assert service.needs_full_weights == await store.services.needs_full_weights(POLICY) == 4
        assert "version 0 and an adapter" in (service.error or "")


async def test_an_adapter_whose_merge_lacks_the_announced_checksum_is_never_loaded(
    engine: Engine, store: Store, until: Until, adapters: tuple[Path, Path], tmp_path: Path
) -> None:
    """As on a machine with another summation order: the keeper requests a complete version."""
    async with keeping(engine, store, until) as kept:
        shutil.copytree(adapters[1], tmp_path / "other" / ADAPTER_FOLDER)
        version = await store.versions.announce(
            POLICY,
            1,
            str(tmp_path / "other"),
            manifest_of(engine.models[0]) | {WEIGHTS_FILE: manifest_of(adapters[0])[ADAPTER_WEIGHTS]},
            kind="adapter",
            base=0,
            adapter=manifest_of(adapters[1]),
        )
        await kept.error_with(f"version {version.version} cannot be assembled")
        assert (await kept.service()).needs_full_weights == version.version
        await assert_serves(kept, 0)
