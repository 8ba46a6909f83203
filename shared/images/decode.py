"""Decodes images, each in one of a few processes that may crash: what a file causes there is a DataError here.

    decode(bytes) ─▶ size of the file, format, pixels of the header ─▶ a free process ─▶ Picture

Promise: memory beyond the bound, endless work and crashes of a decoder do not reach the caller. Valid files have the pixels of
Pillow's own decoding. A file that ends early is refused, not filled up, except where a JPEG contradicts itself inside: libjpeg
fills up the rest of one whose end marker comes too early.
"""

import atexit
import hashlib
import importlib.util
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from shared.errors import ConfigError, DataError
from shared.images.bounds import ImageBounds
from shared.images.header import header_of
from shared.images.picture import Picture
from shared.images.process import DecoderEnded, DecoderProcess, ImageRefused
from shared.processes.out_of_memory import out_of_memory_kills

DEFAULT = ImageBounds()
MOST_PROCESSES = 4
TRIES = 2  # of a file whose process ended by itself
# Processor time is the real bound; this one covers a stalled machine.
WALL_S = 300.0
WALL_FACTOR = 60


def decode(data: bytes, where: str, bounds: ImageBounds = DEFAULT) -> Picture:
    """`where` names the image in messages. May be called from several threads. The caller's thread waits.

    Raises DataError for the file's faults, ConfigError without Pillow, and TimeoutError or MemoryError for the machine's.
    """
    if len(data) > bounds.max_bytes:
        raise DataError(f"{where}: {len(data):,} bytes; expected {bounds.max_bytes:,} at most")
    header = header_of(data, where)
    if header.width * header.height > bounds.max_pixels:
        raise DataError(
            f"{where}: {header.format} of {header.width} x {header.height} pixels; "
            f"expected {bounds.max_pixels:,} pixels at most"
        )
    return Picture(hashlib.sha256(data).hexdigest(), _decoders().decode(data, header.format, where, bounds))


def decode_all(files: Sequence[tuple[bytes, str]], bounds: ImageBounds = DEFAULT) -> list[Picture]:
    """Several (bytes, where) at once, in their order. Raises as `decode`, for the first one that fails."""
    if len(files) < 2:
        return [decode(data, where, bounds) for data, where in files]
    with ThreadPoolExecutor(_decoders().most, thread_name_prefix="decode") as threads:
        return list(threads.map(lambda file: decode(file[0], file[1], bounds), files))


class Decoders:
    """A few processes; the first images start them. The most recently used is taken first, so that few run."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most or max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0))))
        self._processes = [DecoderProcess() for _ in range(self.most)]
        self._free: queue.LifoQueue[DecoderProcess] = queue.LifoQueue()
        for process in self._processes:
            self._free.put(process)

    def decode(self, data: bytes, kind: str, where: str, bounds: ImageBounds) -> npt.NDArray[np.uint8]:
        process = self._free.get()  # each image before this one has its own limit
        try:
            return _decoded(process, data, kind, where, bounds)
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End the processes. The next images start others."""
        for process in self._processes:
            process.close()


def _decoded(process: DecoderProcess, data: bytes, kind: str, where: str, bounds: ImageBounds) -> npt.NDArray[np.uint8]:
    kills, status, wall_s = out_of_memory_kills(), 0, max(WALL_S, WALL_FACTOR * bounds.cpu_s)
    for _ in range(TRIES):
        try:
            return process.decode(data, kind, bounds, wall_s)
        except ImageRefused as exc:
            raise DataError(f"{where}: {kind} that {exc}") from exc
        except TimeoutError as exc:
            raise TimeoutError(f"{where}: not decoded within {wall_s:g} s: the machine stalls") from exc
        except DecoderEnded as exc:
            status = exc.status
            if status == -signal.SIGXCPU:
                raise DataError(f"{where}: {kind} not decoded within {bounds.cpu_s:g} s of processor time") from exc
    if status == -signal.SIGKILL and out_of_memory_kills() != kills:
        raise MemoryError(f"{where}: the machine lacked memory to decode it")
    raise DataError(f"{where}: {kind} that ended the decoder {TRIES} times (status {status})")


_OF_PROCESS: dict[int, Decoders] = {}  # by process id: a fork has none of its parent's


def _decoders() -> Decoders:
    existing = _OF_PROCESS.get(os.getpid())
    if existing is not None:
        return existing
    if importlib.util.find_spec("PIL") is None:
        raise ConfigError("images need Pillow, which is not installed: pip install 'tandem-rl[images]'")
    return _OF_PROCESS.setdefault(os.getpid(), Decoders())


@atexit.register
def _close() -> None:
    decoders = _OF_PROCESS.get(os.getpid())
    if decoders is not None:
        decoders.close()
