"""A run as a file: its restoration equals it, a damaged file changes nothing, and a run is deleted only after it is archived."""

import asyncio
import gzip
import os
import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.asynchronous.collection import AsyncCollection

from shared.errors import ConfigError, DataError
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.archive import archive_run, restore_run
from shared.store.signals import SIGNALS
from tandem.audit.run import audit
from tests.full_disk import room_for
from tests.shared.episodes import whole_run
from tests.tandem.commands.commands import Command
from tests.tandem.commands.test_runs import end, make_older

GZIP_HEADER = 64  # bytes, with the file's name
Documents = dict[str, list[dict[str, Any]]]


async def everything(store: Store) -> Documents:
    names = sorted(set(await store.database.list_collection_names()) - {SIGNALS})
    found = {name: await store.database[name].find().sort([("_id", 1)]).to_list() for name in names}
    for run in found.get("runs", []):
        del run["name"]
    return {name: documents for name, documents in found.items() if documents}


@pytest.fixture
async def other(mongod: Mongod, store: Store) -> AsyncIterator[Store]:
    """No run yet."""
    async with Store.open(mongod.connection_string, store.run + "-other", create=False) as other:
        yield other
        await other.client.drop_database(other.run)


@pytest.fixture
async def archive(store: Store, tmp_path: Path) -> Path:
    await whole_run(store)
    path = tmp_path / "run.bson.gz"
    await archive_run(store, path)
    return path


async def test_a_restored_run_equals_the_archived_one_and_is_a_run_for_every_command(
    store: Store, other: Store, archive: Path
) -> None:
    before = await everything(store)
    counts = await restore_run(other, archive)
    assert await everything(other) == before
    assert {name: len(documents) for name, documents in before.items()} == counts
    assert len(counts) > 5
    assert await other.tasks.count_by_status() == await store.tasks.count_by_status()
    report = await audit(other)
    assert report.ok, report
    assert report.counts == (await audit(store)).counts
    for name in before:
        indexes = await store.database[name].index_information()
        assert await other.database[name].index_information() == indexes
    with pytest.raises(ConfigError, match="exists; expected a new name"):
        await restore_run(other, archive)
    with pytest.raises(ConfigError, match="exists; expected a new file"):
        await archive_run(store, archive)


async def outcome(restoration: Awaitable[Any]) -> str:
    try:
        await restoration
    except DataError as exc:
        return str(exc)
    return "restored"


async def test_damage_anywhere_is_found_before_the_first_write(other: Store, archive: Path, tmp_path: Path) -> None:
    whole, rng = await asyncio.to_thread(archive.read_bytes), random.Random(1)
    entries = gzip.decompress(whole)
    damaged = {
        "cut": whole[: len(whole) // 2],
        "without its end": gzip.compress(entries[: -len(bson.encode({})) - 40]),
        "nothing": b"",
        "text": b"a text",
        "another kind of file": gzip.compress(bson.encode({"collection": "tasks", "document": {"_id": "t"}})),
        "another version": gzip.compress(bson.encode({"archive": "demo", "schema_version": 1})),
        "a foreign collection": gzip.compress(
            bson.encode({"archive": "demo", "schema_version": 4}) + bson.encode({"collection": "x", "document": {}})
        ),
    }
    for _ in range(20):
        at = rng.randrange(len(whole))
        damaged[f"byte {at}"] = whole[:at] + bytes([whole[at] ^ rng.randrange(1, 256)]) + whole[at + 1 :]
    for what, content in damaged.items():
        path = tmp_path / "damaged.bson.gz"
        path.write_bytes(content)
        found = await outcome(restore_run(other, path))
        in_header = what.startswith("byte ") and int(what.split()[1]) < GZIP_HEADER  # the time or the name of the file
        assert str(path) in found or (in_header and found == "restored"), (what, found)
        if found == "restored":
            await other.client.drop_database(other.run)
        assert not await everything(other), what


async def test_an_interrupted_restoration_is_no_run_and_is_completed_by_the_same_call(
    store: Store, other: Store, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AsyncCollection.bulk_write

    async def dies_at_tasks(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.name == "tasks":  # the run's own document stands before them in the archive
            raise asyncio.CancelledError
        return await real(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(AsyncCollection, "bulk_write", dies_at_tasks)
        with pytest.raises(asyncio.CancelledError):
            await restore_run(other, archive)
    assert await other.runs.get() is None
    assert await everything(other)
    await restore_run(other, archive)
    assert await everything(other) == await everything(store)


async def test_a_run_is_deleted_only_after_it_is_archived(tandem: Command, store: Store, tmp_path: Path) -> None:
    await whole_run(store)
    await end(store)
    await make_older(store)
    before = await everything(store)
    folder = tmp_path / "archive"
    file = folder / f"{store.run}.bson.gz"
    delete = ("gc", store.run, "--older_than_days", "6", "--yes", "--archive", str(folder))
    folder.mkdir()
    file.write_bytes(b"an older archive")
    kept = await asyncio.to_thread(tandem, *delete)
    assert (kept.exit_code, f"kept: {store.run}: {file} exists" in kept.output) == (1, True), kept.output
    assert store.run in await store.client.list_database_names()
    file.unlink()
    gone = await asyncio.to_thread(tandem, *delete)
    assert gone.exit_code == 0, gone.output
    assert store.run not in await store.client.list_database_names()
    back = await asyncio.to_thread(tandem, "data", "restore", store.run, str(file))
    assert back.exit_code == 0, back.output
    assert await everything(store) == before


async def test_a_full_disk_is_an_error_and_leaves_no_partial_archive(store: Store, tmp_path: Path) -> None:
    await whole_run(store)
    with room_for(1000), pytest.raises(DataError, match=r"could not be written: .*; free disk space"):
        await archive_run(store, tmp_path / "run.bson.gz")
    assert not os.listdir(tmp_path)
