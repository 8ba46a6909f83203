"""Copies whole groups from one run to another or to a file, for offline training.

A group is its task, all attempts at its slots, their requests, the tools, images and routed experts that these name, and the
training data. The data is written last, so that an interrupted copy counts as missing and is repeated.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pymongo import UpdateOne

from shared.documents.states import DataStatus, TaskStatus
from shared.store.expert_copies import copy_experts, expert_chunks_of, expert_documents
from shared.store.image_copies import copy_images, image_documents, images_of
from shared.store.retry import repeated

if TYPE_CHECKING:
    from shared.store import Store

Document = dict[str, Any]
Copied = tuple[str, Document]  # collection, document
# In write order.
COLLECTIONS = (
    "image_chunks",
    "images",
    "routed_experts",
    "tool_schemas",
    "tasks",
    "records",
    "dispatched_sampling_tasks",
    "record_data",
)
GROUPS_AT_ONCE = 16
WRITES_AT_ONCE = 500
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
    """Yield the documents of every settled group of `policy` with training data, in batches of groups and in write order. Images
    and routed experts come one by one, before the first batch that names them."""
    task_ids = await _tasks_of(source, {"policy": policy, "group_size": {"$gt": 0}})
    images: set[str] = set()
    for start in range(0, len(task_ids), GROUPS_AT_ONCE):
        copied = await _read(source, task_ids[start : start + GROUPS_AT_ONCE])
        new = images_of(copied) - images
        async for image in image_documents(source.database, new):
            yield [image]
        images |= new
        async for chunk in expert_documents(source.database, expert_chunks_of(copied)):
            yield [chunk]
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
    await copy_images(source, target, images_of(copied))
    await copy_experts(source, target, expert_chunks_of(copied))
    return await write(target, copied)


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
