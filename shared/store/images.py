"""Verbs on images: written before the first document that names them, and never changed."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.base import Document as StoredDocument
from shared.documents.content import Block
from shared.documents.images import ImageChunk, ImageFile, StoredImage, chunk_id, chunks_of
from shared.errors import DataError
from shared.store.pipelines import insert_once
from shared.store.retry import survives_outages

Document = dict[str, Any]
Collection = AsyncCollection[Document]
WRITTEN_AT_ONCE_BYTES = 16_000_000  # of one command; MongoDB's limit is 48 MB
SIZES_AT_ONCE = 1_000


@survives_outages
class ImageVerbs:
    def __init__(self, database: AsyncDatabase[Document]) -> None:
        self._images = database[StoredImage.collection]
        self._chunks = database[ImageChunk.collection]

    async def keep(self, files: Sequence[ImageFile]) -> None:
        """Insert the images that are not there; an existing one is unchanged. Raises DataError if one has another digest.

        An image is there once its document is: chunks come before it, and one whose writer was killed is written again.
        """
        by_digest = {file.sha256: file for file in files}
        present = await self.sizes(list(by_digest))
        missing = [file for digest, file in by_digest.items() if digest not in present]
        await asyncio.to_thread(_check_digests, missing)
        await _insert(self._chunks, [chunk for file in missing for chunk in chunks_of(file)])
        await _insert(self._images, [StoredImage.of(file) for file in missing])

    async def read(self, sha256: str) -> bytes:
        """The file's bytes. Raises DataError if they are missing or have another digest."""
        document = await self._images.find_one({"_id": sha256})
        if document is None:
            raise DataError(f"image {sha256}: not in the store")
        image = StoredImage.from_mongo(document)
        data = image.data if image.data is not None else await self._joined(image)
        actual = await asyncio.to_thread(_digest, data)
        if actual != sha256:
            raise DataError(f"image {sha256}: its {len(data)} bytes in the store have the digest {actual}")
        return data

    async def described(self, sha256: str) -> Block | None:
        """The reference to an image, without its bytes. None: it is not there."""
        document = await self._images.find_one({"_id": sha256}, {"data": 0})
        if document is None:
            return None
        image = StoredImage.from_mongo({**document, "data": None})
        sizes = {"width": image.width, "height": image.height, "num_bytes": image.num_bytes}
        return {"type": "image", "sha256": image.id, **sizes}

    async def sizes(self, digests: Sequence[str]) -> dict[str, tuple[int, int]]:
        """{digest: (height, width)} of those that are there, without their bytes."""
        sizes = {}
        for start in range(0, len(digests), SIZES_AT_ONCE):
            some = {"_id": {"$in": list(digests[start : start + SIZES_AT_ONCE])}}
            async for image in self._images.find(some, {"height": 1, "width": 1}):
                sizes[image["_id"]] = (int(image["height"]), int(image["width"]))
        return sizes

    async def _joined(self, image: StoredImage) -> bytes:
        parts = []
        for number in range(image.num_chunks):  # one by one: a command's reply has 16 MB at most
            chunk = await self._chunks.find_one({"_id": chunk_id(image.id, number)})
            if chunk is None:
                raise DataError(f"image {image.id}: chunk {number + 1} of {image.num_chunks} is missing")
            parts.append(ImageChunk.from_mongo(chunk).data)
        return b"".join(parts)


async def _insert(collection: Collection, documents: Sequence[StoredDocument]) -> None:
    """In commands of bounded size."""
    writes: list[UpdateOne] = []
    num_bytes = 0
    for document in documents:
        values = document.to_mongo()
        size = len(values["data"] or b"")
        if writes and num_bytes + size > WRITTEN_AT_ONCE_BYTES:
            await collection.bulk_write(writes, ordered=False)
            writes, num_bytes = [], 0
        writes.append(UpdateOne({"_id": values["_id"]}, insert_once(values), upsert=True))
        num_bytes += size
    if writes:
        await collection.bulk_write(writes, ordered=False)


def _check_digests(files: Sequence[ImageFile]) -> None:
    for file in files:
        actual = _digest(file.data)
        if actual != file.sha256:
            raise DataError(f"image {file.sha256}: its {len(file.data)} bytes have the digest {actual}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
