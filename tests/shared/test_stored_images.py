"""Images in the store: once each, whole or not there, and verified when they are read."""

import asyncio
import uuid
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from shared.documents.images import CHUNK_BYTES, MAX_INLINE_BYTES, StoredImage
from shared.errors import DataError
from shared.processes.mongod import Mongod
from shared.store import Store
from tests.late_commands import Recorder, everything, send
from tests.shared.image_files import image_file, valid

SMALL = image_file(valid("PNG"))
LARGE = image_file(b"\1" + bytes(MAX_INLINE_BYTES + CHUNK_BYTES))


@pytest.mark.parametrize("num_bytes", [0, 1, MAX_INLINE_BYTES, MAX_INLINE_BYTES + 1, 20_000_000])
async def test_the_stored_bytes_of_an_image_of_any_size_are_read_back(store: Store, num_bytes: int) -> None:
    file = image_file(bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256))
    await store.images.keep([file])
    assert await store.images.read(file.sha256) == file.data
    assert await store.images.sizes([file.sha256, "0" * 64]) == {file.sha256: (2, 3)}
    chunks = await store.database["image_chunks"].count_documents({})
    assert chunks == (0 if num_bytes <= MAX_INLINE_BYTES else -(-num_bytes // CHUNK_BYTES))


async def test_an_image_is_stored_once_with_its_first_description(store: Store) -> None:
    await asyncio.gather(*(store.images.keep([SMALL, LARGE, SMALL]) for _ in range(4)))
    before = await everything(store.database)
    assert (len(before["images"]), len(before["image_chunks"])) == (2, 4)
    await store.images.keep([SMALL._replace(width=99), LARGE])
    assert await everything(store.database) == before


async def test_many_images_are_stored_by_commands_of_bounded_size(store: Store) -> None:
    files = [image_file(bytes([n]) * 5_000_000) for n in range(12)]  # 60 MB: more than a command may have
    await store.images.keep(files)
    assert len(await store.images.sizes([file.sha256 for file in files])) == 12
    await store.images.keep([])


async def test_bytes_with_another_digest_are_neither_stored_nor_returned(store: Store) -> None:
    with pytest.raises(DataError, match="have the digest"):
        await store.images.keep([SMALL._replace(data=b"other")])
    assert await store.images.sizes([SMALL.sha256]) == {}
    await store.images.keep([SMALL, LARGE])
    await store.database["images"].update_one({"_id": SMALL.sha256}, {"$set": {"data": b"spoilt"}})
    with pytest.raises(DataError, match=f"image {SMALL.sha256}: its 6 bytes in the store have the digest"):
        await store.images.read(SMALL.sha256)
    await store.database["image_chunks"].delete_one({"_id": f"{LARGE.sha256}:1"})
    with pytest.raises(DataError, match=f"image {LARGE.sha256}: chunk 2 of 4 is missing"):
        await store.images.read(LARGE.sha256)
    with pytest.raises(DataError, match="not in the store"):
        await store.images.read("0" * 64)


async def test_an_image_whose_writer_was_killed_between_any_two_commands_is_whole_or_not_there(mongod: Mongod) -> None:
    """The commands of one `keep`, of which only the first ones reached the database, the last of them in part."""
    recorder, run = Recorder(), f"test-{uuid.uuid4().hex[:12]}"
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongod.connection_string, event_listeners=[recorder])
    huge = image_file(b"\2" + bytes(20_000_000))  # its chunks need two commands
    files = [SMALL, LARGE, huge]
    try:
        store = Store(client, run)
        await store.images.keep(files)
        commands = recorder.take()
        writes = [command | {"updates": [one]} for command in commands for one in command["updates"]]
        assert len(commands) > 2
        assert len(writes) == 4 + 6 + 3
        for reached in range(len(writes) + 1):
            await client.drop_database(run)
            await send(store.database, writes[:reached])
            present = await store.images.sizes([file.sha256 for file in files])
            assert (len(present) == 3) == (reached == len(writes))
            for file in files:
                if file.sha256 in present:
                    assert await store.images.read(file.sha256) == file.data
            await store.images.keep(files)
            for file in files:
                assert await store.images.read(file.sha256) == file.data
    finally:
        await client.drop_database(run)
        await client.close()


async def test_a_run_without_images_has_no_collection_of_them(store: Store) -> None:
    await store.images.keep([])
    assert await store.images.sizes([]) == {}
    assert not {"images", "image_chunks"} & set(await store.database.list_collection_names())


def test_a_large_images_document_has_no_bytes() -> None:
    assert StoredImage.of(SMALL).data == SMALL.data
    assert (StoredImage.of(LARGE).data, StoredImage.of(LARGE).num_chunks) == (None, 4)
