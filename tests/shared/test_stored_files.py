"""The files of a version are a list in MongoDB, so that a filter can name one; documents of earlier programs are read."""

from shared.documents.run import PolicyVersion
from shared.store import Store

FILES = {"config.json": {"sha256": "ab", "bytes": 3}, "model.safetensors": {"sha256": "cd", "bytes": 5}}
LISTED = [
    {"name": "config.json", "digest": "ab", "bytes": 3},
    {"name": "model.safetensors", "digest": "cd", "bytes": 5},
]


async def test_files_are_a_list_of_name_and_digest(store: Store) -> None:
    first = await store.versions.ensure_first("main", "/w", FILES)  # type: ignore[arg-type]  # a manifest, as a plain dict
    later = await store.versions.announce("main", 1, "/w1", FILES, kind="adapter", base=0, adapter=FILES)  # type: ignore[arg-type]  # a manifest, as a plain dict
    assert first.files == later.adapter == FILES
    versions = store.database["policy_versions"]
    assert [d["files"] async for d in versions.find().sort([("version", 1)])] == [LISTED, LISTED]
    found = [d["_id"] async for d in versions.find({"files": {"$elemMatch": {"name": "config.json", "digest": "ab"}}})]
    assert found == ["main:0", "main:1"]
    assert [d["adapter"] async for d in versions.find({"version": 1})] == [LISTED]
    assert (await store.versions.get("main", 1)).bytes_from_base == 8


async def test_the_form_of_earlier_programs_is_read(store: Store) -> None:
    await store.versions.ensure_first("main", "/w", FILES)  # type: ignore[arg-type]  # a manifest, as a plain dict
    await store.database["policy_versions"].update_one({}, {"$set": {"files": FILES}})
    assert (await store.versions.check_first("main", "/w", FILES)).files == FILES  # type: ignore[arg-type]  # a manifest, as a plain dict
    document = await store.database["policy_versions"].find_one({})
    assert document is not None
    assert PolicyVersion.from_mongo(PolicyVersion.from_mongo(document).to_mongo()).files == FILES
    await store.database["policy_versions"].update_one({}, {"$set": {"files": [{"name": 3}]}})
    assert await store.versions.newest("main") is None, "malformed, and set aside"
