"""Compares the cost of decoding an image in a separate process with Pillow in this process.

    python -m scripts.bench.images            ms of wall clock and of processor time (all processes) for each image
    python -m scripts.bench.images --quick    one size, once

apart     `shared.images.decode.decode`, one image at a time
at once   `decode_all`: as many at a time as there are decoders
inside    Pillow in this process: no bounds, and a crash ends it
"""

import io
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import psutil
from PIL import Image

from scripts.bench.harness import Options, Row, Tables, command_line, run_benchmark
from scripts.bench.processes import cpu_s
from shared.images.decode import decode, decode_all

KINDS = ("JPEG", "PNG", "WEBP")
PIXELS_PER_TURN = 4_000_000  # each turn decodes as many


def picture_file(kind: str, side: int) -> bytes:
    """Smooth, with noise, as a photograph."""
    rows, columns = np.mgrid[0:side, 0:side] * (255 / side)
    noise = np.random.default_rng(1).integers(0, 16, (side, side, 3))
    rgb = np.stack([rows, columns, (rows + columns) / 2], -1) * (239 / 255) + noise
    file = io.BytesIO()
    Image.fromarray(rgb.astype(np.uint8)).save(file, kind)
    return file.getvalue()


def apart(files: Sequence[bytes]) -> None:
    for data in files:
        decode(data, "benchmark")


def at_once(files: Sequence[bytes]) -> None:
    decode_all([(data, "benchmark") for data in files])


def inside(files: Sequence[bytes]) -> None:
    for data in files:
        np.array(Image.open(io.BytesIO(data)).convert("RGB"))


WAYS: dict[str, Callable[[Sequence[bytes]], None]] = {"apart": apart, "at once": at_once, "inside": inside}


def all_cpu_s() -> float:
    return sum(cpu_s(pid) for pid in (os.getpid(), *(child.pid for child in psutil.Process().children())))


def measure(options: Options) -> Tables:
    at_once([picture_file("PNG", 8)] * 64)  # starts the decoders
    rows: list[Row] = []
    for kind in KINDS:
        for side in options.sides:
            data = picture_file(kind, side)
            files = [data] * max(1, PIXELS_PER_TURN // side**2)
            taken: defaultdict[str, list[float]] = defaultdict(list)
            for _ in range(options.turns):
                for name, way in WAYS.items():
                    began, used_s = time.perf_counter(), all_cpu_s()
                    way(files)
                    taken[f"{name} ms"].append(1000 * (time.perf_counter() - began) / len(files))
                    taken[f"{name} CPU ms"].append(1000 * (all_cpu_s() - used_s) / len(files))
            rows.append(
                {"format": kind, "side": side, "KB": len(data) / 1000} | {k: median(v) for k, v in taken.items()}
            )
    return {"each image": rows}


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument(
        "--sides", type=int, nargs="+", default=[64, 336, 1024, 2048], help="width and height in pixels"
    )
    parser.add_argument("--turns", type=int, default=7, help="of each way; their median counts")
    run_benchmark(parser, measure, sides=[64], turns=1)
