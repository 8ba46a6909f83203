"""Training data as a file: it round-trips, and a damaged file changes nothing."""

import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from shared.documents.content import image_block
from shared.documents.images import ImageFile
from shared.errors import ConfigError, DataError
from shared.processes.mongod import Mongod
from shared.store import Store
from shared.store.copying import COLLECTIONS, copy_groups
from shared.store.data_file import export_data, import_data
from tandem.audit.run import audit
from tests.full_disk import room_for
from tests.shared.episodes import SCHEMAS, whole_run


async def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    return {name: await store.database[name].find().sort([("_id", 1)]).to_list() for name in COLLECTIONS}


@pytest.fixture
async def other(mongod: Mongod, store: Store) -> Any:
    async with Store.open(mongod.connection_string, store.run + "-other") as other:
        yield other
        await other.client.drop_database(other.run)


async def test_importing_a_file_equals_copying_from_the_run(
    store: Store, other: Store, mongod: Mongod, tmp_path: Path
) -> None:
    await whole_run(store, tasks=3)
    path = tmp_path / "data.bson.gz"
    assert await export_data(store, path, "main") == 3
    assert os.listdir(tmp_path) == ["data.bson.gz"]
    assert await import_data(other, path) == 3
    found = await everything(other)
    assert await import_data(other, path) == 3
    assert await everything(other) == found
    assert len(found["record_data"]) > 3
    assert [document["_id"] for document in found["tool_schemas"]] == [SCHEMAS.id]
    for name in COLLECTIONS:
        await other.database[name].delete_many({})
    await copy_groups(store, other, "main")
    assert await everything(other) == found
    report = await audit(other, running=True)
    assert report.ok, report
    with pytest.raises(ConfigError, match="exists; expected a new file"):
        await export_data(store, path, "main")


async def test_images_go_with_the_groups_that_name_them_and_no_others(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """Also one above the limit of a document, which lies in chunks."""
    await whole_run(store, tasks=2)
    contents = [bytes([number]) * size for number, size in enumerate((9_000_000, 100, 100, 100, 100))]
    files = [ImageFile(hashlib.sha256(data).hexdigest(), data, "PNG", 4, 4) for data in contents]
    await store.images.keep(files)
    prompt, message, result, query, unnamed = files
    dispatches, first = store.database["dispatched_sampling_tasks"], "main:train:0:t0:0:1:0"
    placed = {"sha256": prompt.sha256, "first": 0, "count": 1}
    values: dict[str, Any] = {
        "images": [placed],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, image_block(message)]}],
        "tool_calls.0.blocks": [image_block(result)],
    }
    assert (await dispatches.update_one({"_id": first}, {"$set": values})).modified_count == 1
    named = {"$set": {"payload.query_blocks": [image_block(query)]}}
    assert (await store.database["tasks"].update_one({"_id": "main:train:0:t1"}, named)).modified_count == 1
    await dispatches.update_one(
        {"_id": "main:train:0:t1:1:1:0"}, {"$set": {"images": [placed]}}
    )  # the same image again
    path = tmp_path / "data.bson.gz"
    await export_data(store, path, "main")
    await import_data(other, path)
    found = await everything(other)
    assert {image["_id"] for image in found["images"]} == {file.sha256 for file in files} - {unnamed.sha256}
    assert len(found["image_chunks"]) == 3
    assert await other.images.read(prompt.sha256) == prompt.data
    for name in COLLECTIONS:
        await other.database[name].delete_many({})
    await copy_groups(store, other, "main")
    assert await everything(other) == found


async def test_a_full_disk_is_an_error_and_leaves_no_partial_file(store: Store, tmp_path: Path) -> None:
    await whole_run(store, tasks=3)
    with room_for(1000), pytest.raises(DataError, match=r"data\.bson\.gz could not be written: .*; free disk space"):
        await export_data(store, tmp_path / "data.bson.gz", "main")
    assert not os.listdir(tmp_path)


async def test_a_damaged_file_is_refused_before_anything_is_written(store: Store, other: Store, tmp_path: Path) -> None:
    await whole_run(store, tasks=2)
    path = tmp_path / "data.bson.gz"
    await export_data(store, path, "main")
    whole = path.read_bytes()
    plain = gzip.decompress(whole)
    damaged = {
        "cut": whole[:-40],
        "cut inside": gzip.compress(plain[: len(plain) // 2]),
        "without its end": gzip.compress(plain[: plain.rindex(b"\x10groups") - 4]),
        "flipped": whole[:200] + bytes([whole[200] ^ 255]) + whole[201:],
        "another value": gzip.compress(plain.replace(b"main", b"niam"))[:-8]
        + whole[-8:],  # checksum and length come last
        "no gzip": plain,
    }
    for what, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"data.bson.gz: .*write it again"):
            await import_data(other, path)
        assert not any((await everything(other)).values()), what
    with pytest.raises(ConfigError, match="no such file"):
        await import_data(other, tmp_path / "missing")
