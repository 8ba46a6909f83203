"""A run's training data as one file, to be archived, shared and trained on offline.

    gzip of BSON documents   {"collection": "tasks", "document": {...}} ...   at the end {"groups": 1120, "policy": "main"}

Contains the MongoDB documents of whole settled groups, without training marks. The last entry proves that the file is
complete.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import bson
from bson.errors import InvalidBSON

from shared.errors import ConfigError, DataError
from shared.files.written_file import written_whole
from shared.store import Store
from shared.store.copying import COLLECTIONS, WRITES_AT_ONCE, Copied, groups_of, write

READ_BYTES = 1 << 20
WRITES_AT_ONCE_BYTES = 32_000_000  # of images


async def export_data(store: Store, path: Path, policy: str) -> int:
    """Atomically write every settled group with training data; returns their number.

    Raises ConfigError if the file exists, DataError if it cannot be written.
    """
    check_new(path)
    groups = 0
    with written_whole(path) as temporary, gzip.open(temporary, "wb") as file:
        async for copied in groups_of(store, policy):
            for collection, document in copied:
                file.write(bson.encode({"collection": collection, "document": document}))
            groups += sum(collection == "tasks" for collection, _ in copied)
        if not groups:
            raise DataError(
                f"run {store.run} has no settled group of policy {policy} with training data; nothing was written. "
                f"`tandem status {store.run}` shows its policies and groups"
            )
        file.write(bson.encode({"groups": groups, "policy": policy}))
    return groups


def check_new(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists; expected a new file")


async def import_data(store: Store, path: Path) -> int:
    """Import the file's groups into the run `store`; returns their number. Idempotent.

    Reads the whole file before the first write. Raises ConfigError for a missing file, DataError for a damaged one.
    """
    check_bytes(path)
    groups = sum(collection == "tasks" for collection, _ in _documents(path))
    await store.begin()
    batch: list[Copied] = []
    num_bytes = 0
    for copied in _documents(path):
        batch.append(copied)
        num_bytes += data_bytes(copied[1])
        if len(batch) == WRITES_AT_ONCE or num_bytes > WRITES_AT_ONCE_BYTES:
            await write(store, batch)
            batch, num_bytes = [], 0
    await write(store, batch)
    return groups


def data_bytes(document: Mapping[str, Any]) -> int:
    """Of an image or a part of one; of other documents 0."""
    data = document.get("data")
    return len(data) if isinstance(data, bytes) else 0


def check_bytes(path: Path) -> None:
    """Verify the checksum, which is at the end, before anything is written."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a file of `tandem data export` or `tandem gc --archive`")
    try:
        with gzip.open(path, "rb") as file:
            while file.read(READ_BYTES):
                pass
    except (OSError, EOFError, zlib.error) as exc:
        raise DataError(f"{path}: damaged ({exc}); write it again") from exc


def _documents(path: Path) -> Iterator[Copied]:
    groups = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, entry in enumerate(bson.decode_file_iter(cast(BinaryIO, file)), start=1):
                if "groups" in entry:
                    _check_end(path, entry, groups)
                    return
                if entry.get("collection") not in COLLECTIONS:
                    raise DataError(
                        f"{path}: entry {number} is of {entry.get('collection')!r}; expected one of {COLLECTIONS}"
                    )
                groups += entry["collection"] == "tasks"
                yield entry["collection"], entry["document"]
    except InvalidBSON as exc:
        raise DataError(f"{path}: damaged after {groups} groups ({exc}); write it again") from exc
    raise DataError(f"{path}: ends after {groups} groups without the final entry: it is truncated; write it again")


def _check_end(path: Path, entry: dict[str, Any], groups: int) -> None:
    if entry["groups"] != groups:
        raise DataError(f"{path}: contains {groups} groups; its final entry states {entry['groups']}; write it again")
