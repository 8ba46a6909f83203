"""A keeper over both engines with weights published as changes: it loads only the announced bytes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from shared.documents.run import PolicyVersion
from shared.store import Store
from shared.weights.files import DELTA_FILE, WEIGHTS_FILE, manifest_of
from tests.contract.engines import Engine
from tests.contract.flights import Until
from tests.contract.kept import POLICY, Held, assert_damage_is_told_and_passed, assert_serves, keeping
from trainer.publishing.published_copy import FileLayout, PublishedCopy


class Published:
    """Versions in `folder`, by the convention of `engines`: version v has the weights of `models[v % 2]`."""

    def __init__(self, engine: Engine, store: Store, folder: Path) -> None:
        self._engine, self._store, self._folder = engine, store, folder
        self._files = manifest_of(engine.models[0])
        self._states = [load_file(model / WEIGHTS_FILE) for model in engine.models]
        self._layout = FileLayout.read(engine.models[0] / WEIGHTS_FILE)
        self._next = 1

    async def announce(
        self, *, full: bool = False, delta: bool = True, damage: Callable[[Path], Any] | None = None
    ) -> PolicyVersion:
        """The next version, complete or as changes or both; `damage` is done to its files once their checksums are taken."""
        version, self._next = self._next, self._next + 1
        path = self._folder / str(version)
        if full:
            shutil.copytree(self._engine.models[0], path)
        path.mkdir(parents=True, exist_ok=True)
        last = PublishedCopy(version - 1, self._states[(version - 1) % 2], self._layout, self._files)
        state = self._states[version % 2]
        files = {**self._files, WEIGHTS_FILE: last.entry_with(state)}
        if full:
            tensors = [state[name].numpy().tobytes() for name, _, _ in self._layout.tensors]
            (path / WEIGHTS_FILE).write_bytes(self._layout.header + b"".join(tensors))
        if delta:
            last.write_changes(path / DELTA_FILE, state, 1)
        manifest = manifest_of(path)
        if damage:
            damage(path)
        return await self._store.versions.announce(
            POLICY,
            version,
            str(path),
            files,
            kind="full" if full else "delta",
            base=version - 1 if delta else None,
            delta=manifest.get(DELTA_FILE),
        )


@pytest.fixture
def published(engine: Engine, store: Store, tmp_path: Path) -> Published:
    return Published(engine, store, tmp_path)


async def test_an_engine_follows_changes_bit_for_bit(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    async with keeping(engine, store, until) as kept:
        for full in (False, False, True, False):
            version = await published.announce(full=full)
            await assert_serves(kept, version.version)
            assert ((await kept.service()).error, (await kept.service()).needs_full_weights) == (None, None)
        (worker,) = await store.workers.live()
        assert version.delta is not None
        assert worker.stats["update_bytes"] == version.delta["bytes"]
        phases = {"update_read_s", "update_copy_s", "update_apply_s", "update_verify_s", "update_engine_s"}
        assert phases < worker.stats.keys()


@pytest.mark.parametrize("damaged_full", [False, True])
async def test_an_engine_that_joins_late_starts_with_the_newest_version(
    engine: Engine, store: Store, until: Until, published: Published, damaged_full: bool
) -> None:
    """From the newest complete version, or, if that is damaged, from the previous one and all later changes."""
    await store.versions.ensure_first(POLICY, str(engine.models[0]), manifest_of(engine.models[0]))
    for number in range(1, 6):
        await published.announce(full=number == 3, damage=flip(WEIGHTS_FILE) if damaged_full and number == 3 else None)
    async with keeping(engine, store, until, first=5) as kept:
        await assert_serves(kept, 5)


async def test_an_engine_that_missed_ten_versions_loads_the_newest_at_once(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    wire = Held()
    async with keeping(engine, store, until, wire) as kept:
        wire.let_go.clear()
        await published.announce()
        for number in range(2, 12):
            await published.announce(full=number == 5)
        wire.let_go.set()
        await assert_serves(kept, 11)
        assert wire.asked.count("/update_weights_from_disk") <= 3, "0, one that was under way perhaps, 11"


def flip(name: str) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 16
        (folder / name).write_bytes(data)

    return damage


def cut(folder: Path) -> None:
    (folder / DELTA_FILE).write_bytes((folder / DELTA_FILE).read_bytes()[:-9])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "sha256": flip(DELTA_FILE),
    "was truncated": cut,
    "No such file": lambda folder: (folder / DELTA_FILE).unlink(),
}


async def test_damaged_changes_are_reported_never_loaded_and_skipped_by_the_next_complete_version(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    async with keeping(engine, store, until) as kept:
        await assert_damage_is_told_and_passed(
            kept,
            lambda kind: published.announce(damage=DAMAGES[kind]),
            lambda kind: published.announce(full=True),
            list(DAMAGES),
        )


async def test_an_engine_stops_before_damaged_changes_and_requests_full_weights(
    engine: Engine, store: Store, until: Until, published: Published
) -> None:
    await store.versions.ensure_first(POLICY, str(engine.models[0]), manifest_of(engine.models[0]))
    for number in range(1, 6):
        await published.announce(damage=cut if number == 4 else None)
    async with keeping(engine, store, until, first=3) as kept:
        await assert_serves(kept, 3)
        service = await kept.service()
        assert service.needs_full_weights == await store.services.needs_full_weights(POLICY) == 5
        assert "version 0 and 5 deltas" in (service.error or "")
        assert "/4/weights.delta" in (service.error or "")
