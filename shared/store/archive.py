"""A whole run as one file: what its database holds, to be kept after the database is deleted.

    gzip of BSON documents   {"archive": "demo", "schema_version": 7}   {"collection": "tasks", "document": {...}} ...
                             at the end {"documents": {"tasks": 1120, ...}}

The last entry proves that the file is complete. A restoration makes the indexes again. Signals, weights and checkpoints are left
out; the latter two are files of `output/RUN`.
"""

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import bson
from bson.codec_options import CodecOptions
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from pymongo import ReplaceOne

from shared.documents.base import SCHEMA_VERSION
from shared.errors import ConfigError, DataError
from shared.files.written_file import written_whole
from shared.store import Store
from shared.store.data_file import WRITES_AT_ONCE_BYTES, check_bytes, check_new, data_bytes
from shared.store.runs import RUN_ID
from shared.store.signals import SIGNALS
from shared.store.users import COLLECTIONS

RESTORED_AT_ONCE = 500
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
Counts = Mapping[str, int]  # {collection: documents}


async def archive_run(store: Store, path: Path) -> Counts:
    """Atomically write every document of the run, which must be over.

    Raises ConfigError if the file exists, DataError if it cannot be written.
    """
    check_new(path)
    counts: Counter[str] = Counter()
    with written_whole(path) as temporary, gzip.open(temporary, "wb", compresslevel=6) as file:
        file.write(bson.encode({"archive": store.run, "schema_version": SCHEMA_VERSION}))
        for name in sorted(await store.database.list_collection_names()):
            if name == SIGNALS or name.startswith("system."):
                continue
            async for document in store.database.get_collection(name, codec_options=RAW).find():
                file.write(bson.encode({"collection": name, "document": document}))
                counts[name] += 1
        file.write(bson.encode({"documents": dict(counts)}))
    return counts


async def restore_run(store: Store, path: Path) -> Counts:
    """Write the archive's documents into `store`, the run's own document last. Reads the whole file before the first write.
    A restoration that was interrupted is continued by the same call.

    Raises ConfigError if the run exists or the file does not, DataError for a file that is damaged or of another version.
    """
    check_bytes(path)
    counts = Counter(name for name, _ in entries(path))
    if await store.runs.get() is not None:
        raise ConfigError(f"run {store.run} exists; expected a new name")
    batch: list[ReplaceOne[dict[str, Any]]] = []
    last: dict[str, Any] | None = None
    current = ""
    num_bytes = 0

    async def flush() -> None:
        if batch:
            await store.database[current].bulk_write(batch, ordered=False)
            batch.clear()

    for name, document in entries(path):
        if name == "runs" and document["_id"] == RUN_ID:
            last = document | {"name": store.run}
            continue
        if name != current or len(batch) == RESTORED_AT_ONCE or num_bytes > WRITES_AT_ONCE_BYTES:
            await flush()
            current, num_bytes = name, 0
        num_bytes += data_bytes(document)
        batch.append(ReplaceOne({"_id": document["_id"]}, document, upsert=True))
    await flush()
    if last is not None:
        await store.database["runs"].insert_one(last)
    await store.begin()
    return counts


def entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(collection, document). Raises DataError."""
    counts: Counter[str] = Counter()
    try:
        with gzip.open(path, "rb") as file:
            for number, entry in enumerate(bson.decode_file_iter(cast(BinaryIO, file)), start=1):
                if number == 1:
                    _check_first(path, entry)
                elif "documents" in entry:
                    if entry["documents"] != counts:
                        raise DataError(f"{path}: contains {dict(counts)}; its final entry states {entry['documents']}")
                    return
                elif entry.get("collection") not in COLLECTIONS:
                    raise DataError(f"{path}: entry {number} is of {entry.get('collection')!r}, no collection of a run")
                else:
                    counts[entry["collection"]] += 1
                    yield entry["collection"], entry["document"]
    except InvalidBSON as exc:
        raise DataError(f"{path}: damaged after {counts.total()} documents ({exc})") from exc
    raise DataError(f"{path}: ends after {counts.total()} documents without the final entry: it is truncated")


def _check_first(path: Path, entry: Mapping[str, Any]) -> None:
    if not isinstance(entry.get("archive"), str):
        raise DataError(f"{path}: no archive of a run; expected a file of `tandem gc --archive`")
    if entry.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"{path}: written with schema {entry.get('schema_version')}, this program supports {SCHEMA_VERSION}; use the "
            "version that wrote it"
        )
