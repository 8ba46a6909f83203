"""Pulls a file in chunks from several machines at once.

    trainer    all chunks        ─▶ ┐
    engine A   0, 3, 4, …        ─▶ ├ each source has `SLOTS` workers; a worker takes a missing chunk that its source has,
    engine B   1, 2, 9, …        ─▶ ┘ in random order, checks its digest, writes it

So engines that pull at the same time pull different chunks first, and then from each other; `scripts.bench.weight_streams`
measures how many copies the trainer sends. A chunk with another digest is discarded. A source is given up after `TRIES` errors
in a row or `QUIET_S` without an answer; one that has nothing yet is asked again. Pulling ends where no chunk comes for `QUIET_S`.
What an interrupted attempt left counts (`ChunkedFile.begun`).
"""

import hashlib
import http.client
import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from shared.errors import DataError
from shared.weights.pulling.chunked_file import MOST_CHUNKS, ChunkedFile, Chunking, Shelf

SLOTS = 2  # requests at once to one source: one is answered while the other's chunk is checked and written
TRIES = 3
QUIET_S = 30.0
SLOW_S = 2.0
DIGESTS_S = 600.0  # that a source reads a file of a large model
LOOK_S = 0.05  # between two requests to a source without a new chunk
DESCRIPTION_BYTES = 72 * MOST_CHUNKS  # of a JSON list of digests


class NotHere(DataError):
    """A source has not got the file, or the chunk: an engine that begins later than this one has none yet."""


class NotYet(DataError):
    """A source has the file, and not yet the digests of its chunks."""


@dataclass(slots=True)
class Pulled:
    """`bytes_from`: by source. `resumed`: bytes that were here before."""

    seconds: float = 0.0
    resumed: int = 0
    bytes_from: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(self.bytes_from.values())


def pull(
    path: Path,
    sha256: str,
    size: int,
    sources: Sequence[str],
    *,
    shelf: Shelf | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Pulled:
    """Make `path` the announced file. `sources`: base URLs, that of the trainer's machine first. `shelf`: where others may read
    its chunks while it grows.

    Raises DataError if the sources have not got the whole of it, or if it is not the announced file in the end.
    """
    started = time.monotonic()
    temporary = path.with_name(f"{path.name}.part")
    chunking, problems = _chunking(sha256, size, sources, is_stopped)
    file = ChunkedFile.begun(temporary, chunking)
    if shelf is not None:
        shelf.put(sha256, file)
    result = Pulled(resumed=sum(chunking.length(n) for n, held in enumerate(file.held) if held), problems=problems)
    _Pull(file, sha256, sources, result, is_stopped).run()
    if file.missing:
        said = "; ".join(result.problems) or "stopped"
        raise DataError(f"{path.name}: {len(file.missing)} of {len(file.held)} chunks are missing: {said}")
    with temporary.open("rb") as whole:
        actual = hashlib.file_digest(whole, "sha256").hexdigest()
    if actual != sha256:
        temporary.unlink()
        raise DataError(f"{path.name}: sha256 is {actual}; expected {sha256}: a source described another file")
    temporary.rename(path)
    file.path = path
    result.seconds = time.monotonic() - started
    return result


def _chunking(
    sha256: str, size: int, sources: Sequence[str], is_stopped: Callable[[], bool]
) -> tuple[Chunking, list[str]]:
    """As the first source that has the file describes it. Raises DataError where none has."""
    problems: list[str] = []
    for url in sources:
        try:
            described = json.loads(_description(url, sha256, is_stopped))
            chunking = Chunking(described["bytes"], described["chunk_bytes"], tuple(described["digests"]))
            if chunking.size == size and len(chunking.digests) <= MOST_CHUNKS:
                return chunking, problems
            problems.append(f"{url}: it has {chunking.size} bytes; expected {size}")
        except (OSError, http.client.HTTPException, DataError, ValueError, KeyError, TypeError) as exc:
            problems.append(f"{url}: {type(exc).__name__} {exc}"[:300])
    raise DataError(f"no source has file {sha256}: {'; '.join(problems) or 'there is none'}")


def _description(url: str, sha256: str, is_stopped: Callable[[], bool]) -> bytes:
    end = time.monotonic() + DIGESTS_S
    with _Source(url) as source:
        while True:
            try:
                return source.get(f"/weights/{sha256}", DESCRIPTION_BYTES)
            except NotYet:
                if is_stopped() or time.monotonic() > end:
                    raise
                time.sleep(5 * LOOK_S)  # HTTP has no notification of digests: a new request, for DIGESTS_S at most


class _Pull:
    """One file. `_busy`: the sources that a chunk was requested from, and when last. `_orders`: of each source, the chunks that
    may be missing."""

    def __init__(
        self, file: ChunkedFile, sha256: str, sources: Sequence[str], result: Pulled, is_stopped: Callable[[], bool]
    ) -> None:
        self._file, self._sha256 = file, sha256
        self._result, self._is_stopped = result, is_stopped
        missing = file.missing
        self._missing = set(missing)
        self._busy: dict[int, tuple[list[str], float]] = {}
        self._orders = {url: deque(random.sample(missing, len(missing))) for url in dict.fromkeys(sources)}
        self._lock = threading.Lock()
        self._last_chunk_at = time.monotonic()

    def run(self) -> None:
        """Returns when nothing is missing, or no source works; a worker that still waits for an answer changes nothing."""
        workers = [
            threading.Thread(target=self._work, args=(url,), name=f"pull {url}", daemon=True)
            for url in self._orders
            for _ in range(SLOTS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive() and not self._is_over:
                worker.join(LOOK_S)

    @property
    def _is_over(self) -> bool:
        is_quiet = time.monotonic() > self._last_chunk_at + QUIET_S
        return not self._missing or is_quiet or self._is_stopped()

    def _work(self, url: str) -> None:
        failures, held = 0, b""
        with _Source(url) as source:
            while not self._is_over and failures < TRIES:
                try:
                    number = self._take(url, held)
                    if number is None:
                        held = source.get(f"/weights/{self._sha256}/held", MOST_CHUNKS)
                        number = self._take(url, held)
                    if number is None:
                        # HTTP has no notification of a new chunk: a new request, until the file is whole.
                        time.sleep(LOOK_S)
                        continue
                    self._get(source, number)
                    failures = 0
                except NotHere as exc:
                    held = b""
                    self._note(url, exc)
                    time.sleep(LOOK_S)  # HTTP has no notification of a first chunk: a peer may begin later
                except (OSError, http.client.HTTPException, DataError) as exc:
                    failures += 1
                    source.close()
                    self._note(url, exc)

    def _note(self, url: str, exc: Exception) -> None:
        problem = f"{url}: {type(exc).__name__} {exc}"[:300]
        with self._lock:
            if problem not in self._result.problems:
                self._result.problems.append(problem)

    def _take(self, url: str, held: bytes) -> int | None:
        """A missing chunk that the source has: one that no worker is at, else one that another source has taken `SLOW_S` for."""
        with self._lock:
            order, now = self._orders[url], time.monotonic()
            for is_repeated in (False, True):
                for _ in range(len(order)):
                    number = order.popleft()
                    if number not in self._missing:
                        continue
                    order.append(number)
                    busy, since = self._busy.get(number, ([], now))
                    is_free = not busy or (is_repeated and url not in busy and len(busy) == 1 and now > since + SLOW_S)
                    if is_free and number < len(held) and held[number]:
                        self._busy[number] = ([*busy, url], now)
                        return number
            return None

    def _get(self, source: "_Source", number: int) -> None:
        try:
            data = source.get(f"/weights/{self._sha256}/{number}", self._file.chunking.length(number))
            if number in self._missing and not self._is_stopped():
                self._file.write(number, data)
                with self._lock:
                    sent = self._result.bytes_from
                    sent[source.url] = sent.get(source.url, 0) + len(data)
                    self._missing.discard(number)
                    self._last_chunk_at = time.monotonic()
        finally:
            with self._lock:
                busy, since = self._busy[number]
                busy.remove(source.url)
                self._busy[number] = (busy, since)


class _Source:
    """One connection to a machine, opened when it is needed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
            self._connection = None

    def get(self, path: str, most_bytes: int) -> bytes:
        """Raises OSError, HTTPException; DataError for another answer than 200, or a longer one."""
        if self._connection is None:
            parts = urlsplit(self.url)
            self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=QUIET_S)
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        data = response.read(most_bytes + 1)
        if response.status == 503:
            raise NotYet(f"{path}: its source is still reading it")
        if response.status == 404:
            raise NotHere(f"{path}: not there")
        if response.status != 200:
            raise DataError(f"{path}: HTTP {response.status}")
        if len(data) > most_bytes:
            raise DataError(f"{path}: more than {most_bytes} bytes")
        if response.read(1):
            raise DataError(f"{path}: more than its length")
        return data
