"""The process that serves published weights, a child of the trainer.

    python -m trainer.publishing.serve_weights      reads one JSON object per line, answers each with one

    {"do": "open", "address": "node0", "port": 0}           ─▶ {"port": 41235}
    {"do": "serve", "files": {SHA256: PATH, …}}             ─▶ {"files": 3}      these, and no others  |  {"error": …}

A file is served once its chunks have digests; until then clients get 503 and ask again. It exits with its parent.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.http.listening import listening_socket
from shared.weights.pulling.chunked_file import ChunkedFile, Shelf
from shared.weights.pulling.server import WeightsApp, serving_weights

THREADS = 2  # that read for digests


async def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C
    shelf = Shelf()
    reading: dict[str, asyncio.Task[None]] = {}
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as stack:
        _answer({"ready": os.getpid()})
        while line := await lines.readline():
            request = json.loads(line)
            try:
                if request["do"] == "open":
                    listener: socket.socket = listening_socket(request["address"], request["port"], "broadcast_address")
                    await stack.enter_async_context(serving_weights(WeightsApp(shelf), listener))
                    _answer({"port": listener.getsockname()[1]})
                else:
                    _serve(shelf, reading, request["files"])
                    _answer({"files": len(request["files"])})
            except ConfigError as exc:
                _answer({"error": str(exc)[:500]})
        for task in reading.values():
            task.cancel()


def _serve(shelf: Shelf, reading: dict[str, asyncio.Task[None]], files: dict[str, str]) -> None:
    shelf.keep_only(list(files))
    for sha256 in reading.keys() - files.keys():
        reading.pop(sha256).cancel()
    for sha256, path in files.items():
        if shelf.get(sha256) is None and (sha256 not in reading or reading[sha256].done()):
            shelf.expect(sha256)
            reading[sha256] = asyncio.create_task(_put(shelf, sha256, Path(path)), name=f"digests of {path}")


async def _put(shelf: Shelf, sha256: str, path: Path) -> None:
    try:
        shelf.put(sha256, await asyncio.to_thread(ChunkedFile.whole, path, THREADS))
    except OSError as exc:
        sys.stderr.write(f"weights are not served: {path}: {exc}\n")
        shelf.drop(sha256)


def _answer(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
