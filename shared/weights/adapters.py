"""Published adapters, and their bit-reproducible merge into the base weights.

    adapter_config.json          r, lora_alpha, …                                              (PEFT's format)
    adapter_model.safetensors    base_model.model.LAYER.lora_A.weight: r × inputs, ….lora_B.weight: outputs × r
                                 DoRA: base_model.model.LAYER.lora_magnitude_vector: outputs

    LAYER.weight ← round(V)         V = W + s · (b₁a₁ + b₂a₂ + … + bᵣaᵣ), s = lora_alpha / r (rsLoRA: / √r), bₖ column k of B, aₖ
                                    row k of A
    DoRA:          round(m / ‖V‖ · V), ‖V‖ the Euclidean norm of each row (Liu et al. 2024, arXiv 2402.09353, equation 5)

The summation order of a matrix product depends on processor and library. So the r outer products are added elementwise one
after the other, with IEEE 754 rounding of each multiplication and addition, and the squares of a norm by halves, in float64:
publisher and followers get the same bits, which the checksum of the result verifies. The computation is in float32 (float64 if W
or the adapter is), rounded once to the type of W. Torch-free.

Measured, one thread: 5 ms per million weights at rank 16; blocks of rows are distributed over the given threads.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.documents.run import FileEntry
from shared.errors import DataError
from shared.weights.tensor_file import FileTensor, tensors_of

ADAPTER_FOLDER = "adapter"  # next to a version's complete files, if any
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # PEFT's
MAGNITUDE = "lora_magnitude_vector"  # PEFT's, of a DoRA
BLOCK_NUMBERS = 1 << 16  # per block, which stays in the processor's cache over all ranks

Numbers = NDArray[Any]  # float32 or float64
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Adapter:
    """`factors`: A (r × inputs) and B (outputs × r) by the name of the layer; `scale`: s; `magnitudes`: m (outputs) of a DoRA."""

    scale: float
    factors: Mapping[str, tuple[Numbers, Numbers]]
    magnitudes: Mapping[str, Numbers] = field(default_factory=dict)

    @classmethod
    def parse(cls, folder: Path, files: Mapping[str, bytes]) -> "Adapter":
        """Parse the `files` of a PEFT directory, read from `folder`. Raises DataError for anything but a LoRA or a DoRA."""
        try:
            config: dict[str, Any] = json.loads(files[ADAPTER_CONFIG])
            rank = int(config["r"])
            scale = float(config["lora_alpha"]) / (rank**0.5 if config.get("use_rslora") else rank)
            is_dora = bool(config.get("use_dora"))
        except (KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError) as exc:
            raise DataError(
                f"{folder / ADAPTER_CONFIG}: {type(exc).__name__} {exc}; expected PEFT's of a LoRA"
            ) from exc
        data = files[ADAPTER_WEIGHTS]
        raw = np.frombuffer(data, dtype=np.uint8)
        by_name = {t.name: _wide(raw, t) for t in tensors_of(folder / ADAPTER_WEIGHTS, data)}
        layers = sorted({name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in by_name})
        ends = ["lora_A.weight", "lora_B.weight", *([MAGNITUDE] if is_dora else [])]
        if {f"{PREFIX}{layer}.{end}" for layer in layers for end in ends} != by_name.keys():
            raise DataError(
                f"{folder / ADAPTER_WEIGHTS}: expected only lora_A and lora_B of each layer, with use_dora {MAGNITUDE} too; "
                f"use_dora is {is_dora}"
            )

        def of(layer: str, end: str) -> Numbers:
            return by_name[f"{PREFIX}{layer}.{end}"]

        return cls(
            scale,
            {layer: (of(layer, ends[0]), of(layer, ends[1])) for layer in layers},
            {layer: of(layer, MAGNITUDE) for layer in layers if is_dora},
        )


def is_dora(folder: Path) -> bool:
    """Whether the PEFT directory `folder` is a DoRA, which engines do not load. Raises DataError for an unreadable one."""
    try:
        config: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        return bool(config.get("use_dora"))
    except (OSError, ValueError, AttributeError) as exc:
        raise DataError(f"{folder / ADAPTER_CONFIG}: {type(exc).__name__} {exc}; expected PEFT's of a LoRA") from exc


def merge(
    base: Numbers,
    factors: tuple[Numbers, Numbers],
    scale: float,
    threads: int = 1,
    magnitude: Numbers | None = None,
) -> Numbers:
    """V, or m / ‖V‖ · V, in the order of this file's formula; float64 if one of the tensors is, else float32."""
    a, b = factors
    kind = np.result_type(base, a, b) if magnitude is None else np.result_type(base, a, b, magnitude)
    a, b, factor = a.astype(kind), b.astype(kind), kind.type(scale)
    merged = np.empty(base.shape, dtype=kind)
    step = max(1, BLOCK_NUMBERS // max(1, base.shape[1]))

    def block(start: int) -> None:
        rows = slice(start, start + step)
        total = b[rows, :1] * a[0]
        product = np.empty_like(total)
        for k in range(1, len(a)):
            total += np.multiply(b[rows, k : k + 1], a[k], out=product)
        total *= factor
        np.add(base[rows], total, out=merged[rows])
        if magnitude is not None:
            merged[rows] *= magnitude[rows, None].astype(kind) / _row_norms(merged[rows])[:, None]

    starts = range(0, len(base), step)
    if threads == 1:
        for start in starts:
            block(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(block, starts))
    return merged


def _row_norms(matrix: Numbers) -> Numbers:
    """In the type of `matrix`. Squares in float64, where those of float32 are exact, are added by halves of a row."""
    squares = np.square(matrix, dtype=np.float64)
    while (width := squares.shape[1]) > 1:
        half = width // 2
        folded = squares[:, :half] + squares[:, half : 2 * half]
        if width % 2:
            folded[:, 0] += squares[:, -1]
        squares = folded
    return np.sqrt(squares[:, 0]).astype(matrix.dtype)


def merge_into(folder: Path, adapter: Adapter, threads: int = 1) -> None:
    """Change `folder`, a copy of the base's files, into the complete weights. Raises DataError for an adapter of another
    model.
    """
    for file, targets in _targets(folder, adapter).items():
        mapped = np.memmap(file, dtype=np.uint8, mode="r+")
        for tensor, layer in targets:
            mapped[tensor.start : tensor.end] = _merged(mapped, tensor, adapter, layer, threads)
        mapped.flush()


def merged_files(
    base: Path, files: Mapping[str, FileEntry], adapter: Adapter, threads: int = 1
) -> dict[str, FileEntry]:
    """The `files` of the directory `base` after `merge_into`, without writing any. Raises DataError likewise."""
    merged = dict(files)
    for file, targets in _targets(base, adapter).items():
        mapped = np.memmap(file, dtype=np.uint8, mode="r")
        digest, reached = hashlib.sha256(), 0
        for tensor, layer in targets:
            digest.update(mapped[reached : tensor.start].data)
            digest.update(_merged(mapped, tensor, adapter, layer, threads).data)
            reached = tensor.end
        digest.update(mapped[reached:].data)
        merged[file.name] = {"sha256": digest.hexdigest(), "bytes": len(mapped)}
    return merged


def base_matrices(folder: Path, layers: Mapping[str, tuple[int, int]]) -> Iterator[tuple[Path, FileTensor, str]]:
    """Yield (file, matrix, layer) of each of `layers` (outputs, inputs), in the order of the files' bytes.

    Raises DataError if one is missing or has another shape.
    """
    missing = dict(layers)
    for file in sorted(folder.glob("*.safetensors")):
        for tensor in tensors_of(file):
            layer = tensor.name.removesuffix(".weight")
            if layer not in layers or layer == tensor.name:
                continue
            if tensor.shape != layers[layer]:
                raise DataError(f"{file}: {tensor.name} has shape {tensor.shape}; the adapter's is {layers[layer]}")
            if tensor.dtype not in _ITEMS:
                raise DataError(f"{file}: {tensor.name} is {tensor.dtype}; expected one of {', '.join(_ITEMS)}")
            missing.pop(layer, None)
            yield file, tensor, layer
    if missing:
        raise DataError(f"{folder}: {len(missing)} layers of the adapter are not in its files, such as {min(missing)}")


def _targets(folder: Path, adapter: Adapter) -> dict[Path, list[tuple[FileTensor, str]]]:
    shapes = {layer: (len(b), a.shape[1]) for layer, (a, b) in adapter.factors.items()}
    by_file: dict[Path, list[tuple[FileTensor, str]]] = {}
    for file, tensor, layer in base_matrices(folder, shapes):
        by_file.setdefault(file, []).append((tensor, layer))
    return by_file


def _merged(mapped: Bytes, tensor: FileTensor, adapter: Adapter, layer: str, threads: int) -> Bytes:
    magnitude = adapter.magnitudes.get(layer)
    exact = merge(_wide(mapped, tensor), adapter.factors[layer], adapter.scale, threads, magnitude)
    return _narrow(exact, tensor.dtype).reshape(-1).view(np.uint8)


# ---------------------------------------------------------------------- conversion of stored numbers

_ITEMS: dict[str, Any] = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def _wide(data: Bytes, tensor: FileTensor) -> Numbers:
    """float64 as float64, all others as float32, which represents them exactly."""
    if tensor.dtype not in _ITEMS:
        raise DataError(f"tensor {tensor.name} is {tensor.dtype}; expected one of {', '.join(_ITEMS)}")
    items: NDArray[Any] = data[tensor.start : tensor.end].view(_ITEMS[tensor.dtype]).reshape(tensor.shape)
    if tensor.dtype == "bfloat16":
        items = (items.astype(np.uint32) << 16).view(np.float32)
    return items.astype(np.promote_types(items.dtype, np.float32))


def _narrow(exact: Numbers, dtype: str) -> NDArray[Any]:
    """Round to nearest, ties to even."""
    if dtype != "bfloat16":
        return exact.astype(_ITEMS[dtype])
    bits = exact.astype(np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(exact), 0x7FC0, rounded).astype(np.uint16)
