"""Images that other documents name, taken along when these are copied to another run or a file."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pymongo.asynchronous.database import AsyncDatabase

from shared.documents.content import references_in, references_of
from shared.documents.images import ImageChunk, StoredImage, chunk_id
from shared.store.retry import repeated

if TYPE_CHECKING:
    from shared.store import Store

Document = dict[str, Any]
Database = AsyncDatabase[Document]
COPIED_AT_ONCE = 1_000  # digests of one query


def named_images(collection: str, document: Mapping[str, Any]) -> Iterator[str]:
    """Digests of the images that a task or a request names."""
    if collection == "tasks":
        blocks = document.get("payload", {}).get("query_blocks", ())
        yield from (str(block["sha256"]) for block in references_of(blocks))
    elif collection == "dispatched_sampling_tasks":
        yield from (str(image["sha256"]) for image in document.get("images") or ())
        yield from (str(block["sha256"]) for block in references_in(document.get("messages") or ()))
        for call in document.get("tool_calls") or ():
            yield from (str(block["sha256"]) for block in references_of(call.get("blocks")))


def images_of(documents: Iterable[tuple[str, Document]]) -> set[str]:
    """Digests that (collection, document) name."""
    return {digest for collection, document in documents for digest in named_images(collection, document)}


async def image_documents(source: Database, digests: Iterable[str]) -> AsyncIterator[tuple[str, Document]]:
    """(collection, document) of each image, one at a time: its chunks before it. An image that is missing is left out."""
    for digest in sorted(set(digests)):
        image = await _find(source, StoredImage.collection, digest)
        for number in range(0 if image is None else int(image.get("num_chunks", 0))):
            chunk = await _find(source, ImageChunk.collection, chunk_id(digest, number))
            if chunk is not None:
                yield ImageChunk.collection, chunk
        if image is not None:
            yield StoredImage.collection, image


async def copy_images(source: "Store", target: "Store", digests: Iterable[str]) -> None:
    """Insert the images that `target` lacks. No image is named: no query."""
    named = sorted(set(digests))
    for start in range(0, len(named), COPIED_AT_ONCE):
        some = named[start : start + COPIED_AT_ONCE]
        missing = set(some) - await _present(target.database, some)
        async for collection, document in image_documents(source.database, missing):
            await _insert(target.database, collection, document)


@repeated
async def _find(database: Database, collection: str, name: str) -> Document | None:
    return await database[collection].find_one({"_id": name})


@repeated
async def _present(database: Database, digests: list[str]) -> set[str]:
    cursor = database[StoredImage.collection].find({"_id": {"$in": digests}}, {"_id": 1})
    return {document["_id"] async for document in cursor}


@repeated
async def _insert(database: Database, collection: str, document: Document) -> None:
    await database[collection].update_one({"_id": document["_id"]}, {"$setOnInsert": document}, upsert=True)
