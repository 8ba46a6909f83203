"""A file in chunks, of which some may be missing: what a machine serves to others, also while it is still receiving it.

    model.safetensors, 20 MiB     chunk 0: 8 MiB     chunk 1: 8 MiB     chunk 2: 4 MiB

A file is named by its SHA-256, which only those know who read the run's database. So a name is also the right to read the file.
"""

import hashlib
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import DataError

CHUNK_BYTES = 8 << 20  # a request takes long compared with its head, and a lost one costs little
MOST_CHUNKS = 1 << 20  # of one file: 8 TB


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a file of `size` bytes is divided. `digests`: SHA-256 of each chunk, in hex."""

    size: int
    chunk_bytes: int
    digests: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.size < 0 or self.chunk_bytes < 1 or len(self.digests) != -(-self.size // self.chunk_bytes):
            raise DataError(
                f"a file of {self.size} bytes in chunks of {self.chunk_bytes} has {len(self.digests)} digests; expected one for "
                "each chunk"
            )

    def length(self, number: int) -> int:
        return min(self.chunk_bytes, self.size - number * self.chunk_bytes)


@dataclass(slots=True)
class ChunkedFile:
    """`held`: one byte for each chunk, 1 where `path` has it."""

    path: Path
    chunking: Chunking
    held: bytearray = field(default_factory=bytearray)

    @classmethod
    def whole(cls, path: Path, threads: int = 1, chunk_bytes: int = CHUNK_BYTES) -> "ChunkedFile":
        """Reads all of the file. Raises OSError."""
        size = path.stat().st_size
        count = -(-size // chunk_bytes)
        with path.open("rb") as file, ThreadPoolExecutor(threads, "digests") as pool:
            digests = pool.map(lambda n: digest_of(os.pread(file.fileno(), chunk_bytes, n * chunk_bytes)), range(count))
            return cls(path, Chunking(size, chunk_bytes, tuple(digests)), bytearray(b"\1" * count))

    @classmethod
    def begun(cls, path: Path, chunking: Chunking) -> "ChunkedFile":
        """Of a file to be received. What an earlier, interrupted attempt left in `path` counts where its digest is right."""
        count = len(chunking.digests)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            found = file.tell()
        held = bytearray(count)
        with path.open("r+b") as file:
            file.truncate(chunking.size)
            for number in range(-(-min(found, chunking.size) // chunking.chunk_bytes)):
                data = os.pread(file.fileno(), chunking.length(number), number * chunking.chunk_bytes)
                held[number] = digest_of(data) == chunking.digests[number]
        return cls(path, chunking, held)

    @property
    def missing(self) -> list[int]:
        return [number for number, here in enumerate(self.held) if not here]

    def read(self, number: int) -> bytes:
        """Raises OSError; DataError for a chunk that is not here any more."""
        with self.path.open("rb") as file:
            data = os.pread(file.fileno(), self.chunking.chunk_bytes, number * self.chunking.chunk_bytes)
        if len(data) != self.chunking.length(number):
            raise DataError(
                f"{self.path}: chunk {number} has {len(data)} bytes; expected {self.chunking.length(number)}"
            )
        return data

    def write(self, number: int, data: bytes | bytearray) -> None:
        """Raises DataError for other bytes than the announced ones; then nothing is written."""
        if digest_of(data) != self.chunking.digests[number]:
            raise DataError(f"chunk {number} of {self.path.name} has another digest than announced")
        with self.path.open("r+b") as file:
            os.pwrite(file.fileno(), data, number * self.chunking.chunk_bytes)
        self.held[number] = 1


class Shelf:
    """The files that a machine serves, by SHA-256. Of an expected one the digests are still computed."""

    def __init__(self) -> None:
        self._files: dict[str, ChunkedFile | None] = {}

    def expect(self, sha256: str) -> None:
        self._files[sha256] = None

    def put(self, sha256: str, file: ChunkedFile) -> None:
        self._files[sha256] = file

    def drop(self, sha256: str) -> None:
        self._files.pop(sha256, None)

    def get(self, sha256: str) -> ChunkedFile | None:
        return self._files.get(sha256)

    def is_expected(self, sha256: str) -> bool:
        return sha256 in self._files and self._files[sha256] is None

    def drop_deleted(self) -> None:
        """All whose file no longer exists."""
        self._files = {name: file for name, file in self._files.items() if file is None or file.path.exists()}

    def keep_only(self, names: Collection[str]) -> None:
        self._files = {name: file for name, file in self._files.items() if name in names}


def digest_of(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()
