"""The files of a published policy version and their checksums; torch-free, since engine keepers verify before they load.

A manifest is {file name: {"sha256": hex digest, "bytes": size}}; the `policy_versions` document contains it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from shared.documents.run import FileEntry
from shared.errors import DataError

CHUNK_BYTES = 1 << 20
WEIGHTS_FILE = "model.safetensors"  # written by the trainer
DELTA_FILE = "weights.delta"  # changes since the previous version


def entry_of(path: Path) -> FileEntry:
    """Checksum and size of one file."""
    return {"sha256": sha256_of(path), "bytes": path.stat().st_size}


def manifest_of(directory: Path) -> dict[str, FileEntry]:
    """Checksums and sizes of every file directly in `directory`, by name."""
    files = sorted(path for path in directory.iterdir() if path.is_file())
    return {path.name: entry_of(path) for path in files}


def verify_files(directory: Path, manifest: Mapping[str, FileEntry]) -> None:
    """Verify that `directory` contains every file of the manifest, byte for byte; ignores other files.

    Raises DataError with the file, what was found and what was expected.
    """
    for name, expected in manifest.items():
        path = directory / name
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            raise DataError(f"{path}: missing; expected {expected['bytes']} bytes, as published") from None
        if size != expected["bytes"]:
            raise DataError(f"{path}: {size} bytes; expected {expected['bytes']}: the copy is incomplete or changed")
        actual = sha256_of(path)
        if actual != expected["sha256"]:
            raise DataError(
                f"{path}: sha256 is {actual}; expected {expected['sha256']}: the file was changed or damaged"
            )


def sha256_of(path: Path) -> str:
    """Hex digest of the file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
