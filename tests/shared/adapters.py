"""Hand-written adapter files, without torch and PEFT."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from shared.weights.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MAGNITUDE, PREFIX, Adapter

Factors = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]


def random_factors(shapes: Mapping[str, tuple[int, int]], rank: int, size: float, seed: int = 0) -> Factors:
    """A and B of each layer (outputs, inputs), float32."""
    random = np.random.default_rng(seed)

    def some(*shape: int) -> NDArray[Any]:
        return random.normal(0.0, size, shape).astype(np.float32)

    return {layer: (some(rank, inputs), some(outputs, rank)) for layer, (outputs, inputs) in shapes.items()}


def write_adapter(
    folder: Path, factors: Factors, alpha: float, magnitudes: Mapping[str, NDArray[Any]] | None = None, **config: Any
) -> Path:
    """A PEFT directory; of a DoRA with `magnitudes`."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = len(next(iter(factors.values()))[0])
    ends = sorted({layer.rpartition(".")[2] for layer in factors})
    plain = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": ends, "use_dora": bool(magnitudes)}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(plain | config))
    tensors = {}
    for layer, pair in factors.items():
        tensors |= {f"{PREFIX}{layer}.lora_{which}.weight": m for which, m in zip("AB", pair, strict=True)}
    tensors |= {f"{PREFIX}{layer}.{MAGNITUDE}": m for layer, m in (magnitudes or {}).items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    return folder


def read_adapter(folder: Path) -> Adapter:
    return Adapter.parse(folder, {path.name: path.read_bytes() for path in folder.iterdir()})
