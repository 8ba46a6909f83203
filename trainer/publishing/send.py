"""The process that sends published weights: a child of the trainer, so that no peer can block or crash the trainer.

    python -m trainer.publishing.send      reads one JSON object per line, answers each with one

    {"do": "open", "address": "gpu1", "port": 0, "limit_s": 60}       ─▶ {"port": 41234}      others may connect from now on
    {"do": "send", "file": …, "sha256": …, "group": …, "backend": …,
     "world_size": 3, "bucket_bytes": …, "device": …, "limit_s": 60}  ─▶ {"bytes": …, "seconds": …}  |  {"error": …}

It verifies the published file's checksum, then sends from it. It forms the group like SGLang (`init_custom_process_group`
in its utils/common.py), so that both use the same keys. After an error it exits, which releases waiting peers: gloo
notifies them at once. It also exits with its parent.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shared.errors import DataError
from shared.weights.buckets import Bucket, buckets_of
from shared.weights.files import sha256_of
from trainer.process.listening import listening_store
from trainer.process.private_apis import group_of_others


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the trainer handles Ctrl-C: it finishes its step and ends this process
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), name="requests", daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print; stdout is reserved for answers
    store: dist.TCPStore | None = None
    _answer(answers, {"ready": os.getpid()})
    while True:
        request = requests.get()
        try:
            if request["do"] == "open":
                del store  # its port is free again
                store = listening_store(str(request["address"]), int(request["port"]), float(request["limit_s"]))
                _answer(answers, {"port": store.port})
            else:
                assert store is not None, "opened before"
                _answer(answers, send(store, request))
        except (RuntimeError, DataError, OSError) as exc:  # torch raises RuntimeError, also for time-outs
            _answer(answers, {"error": f"{type(exc).__name__}: {exc}"[:500]})
            os._exit(1)  # no cleanup: it would wait for lost peers


def _listen(requests: "queue.SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)  # the trainer has exited


def _answer(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def send(store: dist.TCPStore, request: dict[str, Any]) -> dict[str, float]:
    """Send the whole file to all members. Raises DataError, OSError, RuntimeError."""
    started = time.monotonic()
    file, device = Path(request["file"]), torch.device(request["device"])
    digest = sha256_of(file)
    if digest != request["sha256"]:
        raise DataError(f"{file}: sha256 is {digest}; expected {request['sha256']}: the file was changed or damaged")
    buckets = buckets_of(file, int(request["bucket_bytes"]))
    with _group(store, request, device) as group, file.open("rb") as opened:
        for bucket in buckets:
            data = _read(opened, bucket).to(device)
            dist.broadcast(data, src=0, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return {"bytes": sum(bucket.end - bucket.start for bucket in buckets), "seconds": time.monotonic() - started}


def _read(opened: Any, bucket: Bucket) -> torch.Tensor:
    """Read a bucket as uint8 on the CPU."""
    data = torch.empty(bucket.end - bucket.start, dtype=torch.uint8)
    opened.seek(bucket.start)
    if opened.readinto(data.numpy()) != len(data):
        raise DataError(f"{opened.name} is truncated: it lacks {len(data)} bytes from {bucket.start}")
    return data


@contextlib.contextmanager
def _group(store: dist.TCPStore, request: dict[str, Any], device: torch.device) -> Iterator[dist.ProcessGroup]:
    """The group, for rank 0. Sets both time-outs: of forming it, and of each collective."""
    limit = timedelta(seconds=float(request["limit_s"]))
    name, size = str(request["group"]), int(request["world_size"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store.set_timeout(limit)
    group = group_of_others(store, name, size, str(request["backend"]), limit)
    yield group
    dist.destroy_process_group(group)


if __name__ == "__main__":
    main()
