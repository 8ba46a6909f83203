"""What the local engine takes of memory: its weights in float32, and a KV cache of slots that hold a whole context each.

    slots = kv_cache_bytes // (context_length * bytes of a token), at most max_running_requests

Pages of the cache count from the moment that a token is written to them; `cache_bytes` is their sum when all slots are full.
Without torch: the launcher computes it from the model's folder, before it starts anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from shared.errors import DataError
from shared.processes.machine_memory import machine_memory_bytes
from shared.weights.tensor_file import tensors_of

FLOAT_BYTES = 4
SMALL_MODEL = 20_000_000  # below this many parameters one thread is faster than several (matrices too small to share)
CACHE_SHARE = 4  # by default one of so many parts of the machine's memory: trainer, samplers and database are beside it
MAX_RUNNING = 64
_WIDTH = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
SHAPE_KEYS = ("num_hidden_layers", "max_position_embeddings", *_WIDTH)


class CacheTooSmall(ValueError):
    """No whole context fits. The message names both numbers and the settings."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """`limit`: the model's own length of context."""

    layers: int
    kv_heads: int
    head_dim: int
    limit: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> CacheShape:
        """From the model's config.json, of a vision model its `text_config`. Raises KeyError for one without these names."""
        config = config.get("text_config") or config
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            limit=config["max_position_embeddings"],
        )

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class CachePlan:
    """`full_context`: the context that would be served with more memory."""

    slots: int
    context: int
    token_bytes: int
    full_context: int
    budget_bytes: int

    @property
    def cache_bytes(self) -> int:
        return self.slots * self.context * self.token_bytes

    @property
    def is_shortened(self) -> bool:
        return self.context < self.full_context

    def text(self, weights_bytes: int) -> str:
        """One line for people."""
        return (
            f"{in_gb(weights_bytes + self.cache_bytes)} of memory at most: weights {in_gb(weights_bytes)}, KV cache "
            f"{in_gb(self.cache_bytes)} = {self.slots} slots x {self.context} tokens x {self.token_bytes / 1024:.3g} KiB "
            f"(kv_cache_bytes {self.budget_bytes})"
        )


def plan_cache(
    shape: CacheShape,
    *,
    kv_cache_bytes: int | None = None,
    max_running: int = MAX_RUNNING,
    max_total_tokens: int | None = None,
    context_length: int | None = None,
    may_shorten: bool = False,
) -> CachePlan:
    """`may_shorten`: a context of which not one fits is shortened to what does. Raises CacheTooSmall."""
    budget = default_cache_bytes() if kv_cache_bytes is None else kv_cache_bytes
    full = min(context_length or shape.limit, shape.limit)
    tokens = budget // shape.token_bytes
    if max_total_tokens is not None:
        if max_total_tokens < full:
            raise CacheTooSmall(
                f"--max-total-tokens {max_total_tokens} is less than one context of {full} tokens; raise it, or lower "
                "--context-length"
            )
        tokens = min(tokens, max_total_tokens)
    context = min(full, tokens) if may_shorten else full
    slots = min(max_running, tokens // context) if context else 0
    if slots < 1:
        raise CacheTooSmall(
            f"one context of {full} tokens takes {in_gb(full * shape.token_bytes)} of KV cache ({shape.token_bytes} bytes a "
            f"token), and --kv-cache-bytes is {budget} ({in_gb(budget)}); raise it, or lower --context-length"
        )
    return CachePlan(slots, context, shape.token_bytes, full, budget)


def default_cache_bytes() -> int:
    return machine_memory_bytes() // CACHE_SHARE


def weights_bytes(folder: Path) -> int:
    """Of the model in float32, from the heads of its files; 0 for files of another kind."""
    try:
        shapes = [tensor.shape for file in folder.glob("*.safetensors") for tensor in tensors_of(file)]
    except (OSError, DataError):
        return 0
    return FLOAT_BYTES * sum(map(prod, shapes))


def in_gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
