"""Copies whole groups from one run to another or to a file, for offline training.

A group is its task, all attempts at its slots, their requests, the tools and the images that these name, and the training data.
Images are written first, the data last: an interrupted copy counts as missing and is repeated.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pymongo import UpdateOne

from shared.documents.content import references_in, references_of
from shared.documents.images import CHUNK_BYTES, ImageChunk, StoredImage, chunk_id
from shared.documents.states import DataStatus, TaskStatus
from shared.store.retry import repeated

if TYPE_CHECKING:
    from shared.store import Store

Document = dict[str, Any]
Copied = tuple[str, Document]  # collection, document
# In write order.
COLLECTIONS = (
    *(ImageChunk.collection, StoredImage.collection),
    *("tool_schemas", "tasks", "records", "dispatched_sampling_tasks", "record_data"),
)
GROUPS_AT_ONCE = 16
WRITES_AT_ONCE = 500
IMAGE_BYTES_AT_ONCE = 4 * CHUNK_BYTES
OF_RUN = "rules"  # a number of the source's own rules: the group is settled, and the target may have others
NO_MARKS: Document = {"trained_count": 0, "last_trained_step": None}


async def copy_groups(source: "Store", target: "Store", policy: str) -> int:
    """Copy every settled group of `policy` with training data that `target` lacks; returns their number. `source` is only read.

    Training marks are not copied: data that `source` has trained, or set aside as stale, is ready in `target`.
    """
    present = set(await _tasks_of(target, {"policy": policy}))
    with_data = await _tasks_of(source, {"policy": policy, "group_size": {"$gt": 0}})
    missing = [task for task in with_data if task not in present]
    copied = 0
    for start in range(0, len(missing), GROUPS_AT_ONCE):
        copied += await _copy(source, target, missing[start : start + GROUPS_AT_ONCE])
    return copied


async def groups_of(source: "Store", policy: str) -> AsyncIterator[list[Copied]]:
    """Yield the documents of every settled group of `policy` with training data, in batches of groups and in write order.

    An image comes once, in a batch before the first group that names it.
    """
    task_ids = await _tasks_of(source, {"policy": policy, "group_size": {"$gt": 0}})
    earlier: set[str] = set()
    for start in range(0, len(task_ids), GROUPS_AT_ONCE):
        copied = await _read(source, task_ids[start : start + GROUPS_AT_ONCE])
        digests = image_digests(copied) - earlier
        async for images in _images_of(source, digests):
            yield images
        earlier |= digests
        yield copied


async def write(target: "Store", copied: Sequence[Copied]) -> int:
    """Insert missing documents; returns the number of groups (tasks) in `copied`."""
    for collection in COLLECTIONS:
        await _insert(target, collection, (document for name, document in copied if name == collection))
    return sum(name == "tasks" for name, _ in copied)


@repeated
async def _tasks_of(store: "Store", where: Document) -> list[str]:
    return await store.database["record_data"].distinct("task", where)


async def _copy(source: "Store", target: "Store", task_ids: Sequence[str]) -> int:
    copied = await _read(source, task_ids)
    digests = image_digests(copied)
    present = await target.images.sizes(sorted(digests)) if digests else {}
    async for images in _images_of(source, digests - present.keys()):
        await write(target, images)
    return await write(target, copied)


def image_digests(copied: Sequence[Copied]) -> set[str]:
    """Of the images that prompts, messages, tool results and queries name."""
    named: list[Mapping[str, Any]] = []
    for collection, document in copied:
        if collection == "tasks":
            named += references_of(document["payload"].get("query_blocks"))
        elif collection == "dispatched_sampling_tasks":
            named += document.get("images", ())
            named += references_in(document.get("messages", ()))
            named += [block for call in document.get("tool_calls", ()) for block in references_of(call.get("blocks"))]
    return {str(image["sha256"]) for image in named}


async def _images_of(source: "Store", digests: Collection[str]) -> AsyncIterator[list[Copied]]:
    """Their documents, each after its chunks, in batches of bounded size. A missing one is left out: the trainer names it."""
    batch: list[Copied] = []
    num_bytes = 0
    for digest in sorted(digests):
        document = await _document(source, StoredImage.collection, digest)
        if document is None:
            continue
        names = [(ImageChunk.collection, chunk_id(digest, number)) for number in range(document.get("num_chunks", 0))]
        for collection, name in [*names, (StoredImage.collection, digest)]:
            part = document if name == digest else await _document(source, collection, name)
            if part is None:
                continue
            batch.append((collection, part))
            num_bytes += len(part["data"] or b"")
            if num_bytes > IMAGE_BYTES_AT_ONCE:
                yield batch
                batch, num_bytes = [], 0
    if batch:
        yield batch


@repeated
async def _document(source: "Store", collection: str, name: str) -> Document | None:
    return await source.database[collection].find_one({"_id": name})


@repeated
async def _read(source: "Store", task_ids: Sequence[str]) -> list[Copied]:
    settled = {"_id": {"$in": list(task_ids)}, "status": TaskStatus.SETTLED}
    tasks = await source.database["tasks"].find(settled).to_list()
    of_tasks = {"task": {"$in": [task["_id"] for task in tasks]}}
    records = await source.database["records"].find(of_tasks).to_list()
    copied: list[Copied] = [("tasks", {k: v for k, v in task.items() if k != OF_RUN}) for task in tasks]
    copied += [("records", record | NO_MARKS) for record in records]
    for record in records:
        dispatches = source.database["dispatched_sampling_tasks"].find({"record": record["_id"]})
        copied += [("dispatched_sampling_tasks", dispatch) async for dispatch in dispatches]
    named = {str(dispatch["tools_hash"]) for name, dispatch in copied if name == "dispatched_sampling_tasks"}
    schemas = source.database["tool_schemas"].find({"_id": {"$in": sorted(named)}})
    copied += [("tool_schemas", document) async for document in schemas]
    copied += [("record_data", _unmarked(data)) async for data in source.database["record_data"].find(of_tasks)]
    return copied


def _unmarked(data: Document) -> Document:
    used_up = data["status"] in (DataStatus.TRAINED, DataStatus.STALE)
    again: Document = {"status": DataStatus.READY.value, "reason": None} if used_up else {}
    return data | NO_MARKS | {"trained_steps": [], "claim": None} | again


@repeated
async def _insert(target: "Store", collection: str, documents: Iterable[Document]) -> None:
    """Insert missing documents."""
    writes = [UpdateOne({"_id": d["_id"]}, {"$setOnInsert": d}, upsert=True) for d in documents]
    for start in range(0, len(writes), WRITES_AT_ONCE):
        await target.database[collection].bulk_write(writes[start : start + WRITES_AT_ONCE], ordered=False)
