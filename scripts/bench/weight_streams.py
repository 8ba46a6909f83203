"""A version of the weights to 1, 4 and 16 machines: seconds until all have it, and how many copies the trainer's machine sends.

    python -m scripts.bench.weight_streams [--mb 128] [--uplink 100] [--engines 1,4,16] [--json FILE] [--quick]

Every machine is a process with its own folder and a network of its own: it sends `--uplink` MB/s at most, in one queue, as a
network card does. `one source`: all pull from the trainer's machine. `peers`: also from each other (weight_transport peers).
`disk`: all read and verify the file in one folder (weight_transport disk), which here the kernel holds in memory. `MB` is what
each engine reads, `MB/s` that of all engines together, `copies` what the trainer's machine sent, in files; `ideal s` one file
over one uplink. `unbounded`: one machine pulls without a limit of the network: MB/s, and its seconds of CPU for each GB.
"""

import asyncio
import multiprocessing
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from shared.weights.files import sha256_of
from shared.weights.pulling.chunked_file import ChunkedFile, Shelf
from shared.weights.pulling.client import pull
from shared.weights.pulling.server import WeightsApp, serving_weights

MB = 1_000_000
CHUNK_BYTES = 1 << 20
LIMIT_S = 600.0


class Uplink:
    """The app, behind a network card of `rate` bytes a second; 0: without a limit."""

    def __init__(self, app: WeightsApp, rate: float) -> None:
        self._app, self._rate = app, rate
        self._card = asyncio.Lock()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def slowly(event: Any) -> None:
            if self._rate and event["type"] == "http.response.body":
                async with self._card:
                    await asyncio.sleep(len(event["body"]) / self._rate)
            await send(event)

        await self._app(scope, receive, slowly)


def machine(pipe: Connection, folder: Path, source: Path | None, rate: float) -> None:
    """One machine. Answers its URL; then each request (path's name, sha256, size, sources) with seconds; ends with None."""
    shelf = Shelf()
    if source is not None:
        shelf.put(sha256_of(source), ChunkedFile.whole(source, chunk_bytes=CHUNK_BYTES))
    app = WeightsApp(shelf)
    listener = socket.create_server(("127.0.0.1", 0))

    async def serve() -> None:
        async with serving_weights(Uplink(app, rate), listener):
            await asyncio.to_thread(answer)

    def answer() -> None:
        pipe.send(f"http://127.0.0.1:{listener.getsockname()[1]}")
        while (request := pipe.recv()) is not None:
            name, sha256, size, sources = request
            cpu = time.process_time()
            seconds = pull(folder / name, sha256, size, sources, shelf=shelf).seconds if sources else 0.0
            pipe.send((seconds, time.process_time() - cpu, app.bytes_sent))

    asyncio.run(serve())


class Machine:
    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe
        self.url = str(self._receive())

    def begin(self, *request: Any) -> None:
        self._pipe.send(request)

    def result(self) -> tuple[float, float, int]:
        """Seconds, CPU seconds of the request, bytes sent since the start."""
        seconds, cpu, sent = self._receive()
        return seconds, cpu, sent

    def sent(self) -> int:
        self.begin("", "", 0, [])
        return self.result()[2]

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join(LIMIT_S)

    def _receive(self) -> Any:
        if not self._pipe.poll(LIMIT_S):
            raise RuntimeError(f"process {self._process.pid} did not answer within {LIMIT_S:g} s")
        return self._pipe.recv()


@contextmanager
def machines(folder: Path, source: Path, count: int, rate: float) -> Iterator[list[Machine]]:
    """The trainer's first, then `count` engines'."""
    context = multiprocessing.get_context("spawn")
    started: list[Machine] = []
    try:
        for number in range(count + 1):
            own, theirs = context.Pipe()
            place = folder / f"machine-{number}"
            arguments = (theirs, place, source if number == 0 else None, rate)
            process = context.Process(target=machine, args=arguments, name=f"machine {number}", daemon=True)
            process.start()
            started.append(Machine(process, own))
        yield started
    finally:
        for each in started:
            each.end()


def to_all(all_machines: Sequence[Machine], name: str, source: Path, *, peers: bool) -> tuple[float, int]:
    """Seconds until all engines have the file; bytes that the trainer's machine sent for it."""
    trainer, *engines = all_machines
    sha256, size, before = sha256_of(source), source.stat().st_size, trainer.sent()
    for engine in engines:
        others = [other.url for other in engines if other is not engine] if peers else []
        engine.begin(name, sha256, size, [trainer.url, *others])
    seconds = max(engine.result()[0] for engine in engines)
    return seconds, trainer.sent() - before


def from_disk(source: Path, count: int) -> float:
    """All read it at once, each for its checksum."""
    readers = [threading.Thread(target=sha256_of, args=(source,), name=f"reader {k}") for k in range(count)]
    began = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return time.monotonic() - began


def unbounded(folder: Path, source: Path) -> Row:
    size = source.stat().st_size
    with machines(folder, source, 1, 0.0) as (trainer, engine):
        engine.begin("unbounded", sha256_of(source), size, [trainer.url])
        seconds, cpu, _ = engine.result()
    return {"MB": size / MB, "s": seconds, "MB/s": size / MB / seconds, "receiver's CPU s / GB": cpu * 1e9 / size}


def version(engines: int, way: str, size: int, seconds: float, *, ideal_s: float, sent: int) -> Row:
    return {
        "engines": engines,
        "way": way,
        "MB": size / MB,
        "s": seconds,
        "MB/s": engines * size / MB / seconds,
        "ideal s": ideal_s,
        "copies": sent / size,
    }


def measure(options: Options) -> Tables:
    source = options.folder / "model.safetensors"
    source.write_bytes(random.Random(0).randbytes(int(options.mb * MB)))
    size, rate = source.stat().st_size, options.uplink * MB
    rows: list[Row] = []
    for count in map(int, options.engines.split(",")):
        folder = options.folder / f"of-{count}"
        rows.append(version(count, "disk", size, from_disk(source, count), ideal_s=0.0, sent=0))
        for way in ("one source", "peers"):
            with machines(folder / way, source, count, rate) as all_machines:
                seconds, sent = to_all(all_machines, way, source, peers=way == "peers")
            rows.append(version(count, way, size, seconds, ideal_s=size / rate, sent=sent))
    return {"versions": rows, "unbounded": [unbounded(options.folder / "unbounded", source)]}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--mb", type=float, default=128, help="megabytes of the file (default 128)")
    parser.add_argument("--uplink", type=float, default=100, help="MB/s that a machine sends (default 100)")
    parser.add_argument("--engines", default="1,4,16", help="numbers of machines (default 1,4,16)")
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    run_benchmark(parser, measure, mb=8, uplink=50, engines="1,3")
