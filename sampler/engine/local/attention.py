"""Token positions of one forward pass, and attention over the slot cache. Shared by both forwards.

A `Plan` is a decode step (one token for each of slots 0..n-1) or a prefill: pieces of several sequences packed without padding.
The linear layers process all tokens together; attention runs piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from sampler.engine.local.kv import KvSlots


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `start:end` of the packed row are positions `past:past + end - start` of the sequence in `slot`."""

    start: int
    end: int
    slot: int
    past: int


@dataclass(frozen=True, slots=True)
class ShownFeatures:
    """Image features in place of the embeddings of the tokens `row_P`. `levels_PD`: [0] these, [1 + i] added behind layer i."""

    row_P: torch.Tensor
    levels_PD: list[torch.Tensor]


@dataclass(slots=True)
class Plan:
    kv: KvSlots
    token_N: torch.Tensor  # int64
    position_N: torch.Tensor  # int64
    write_index: torch.Tensor  # [layers, N * 2 * kv_heads], rows of kv.flat
    pieces: list[tuple[Piece, torch.Tensor | None]]  # empty: a decode step
    logit_rows: torch.Tensor | None = None  # tokens whose logits are needed; None: all
    longest: int = 0  # decode: the longest sequence, this token included
    mask: torch.Tensor | None = None  # decode: additive, [N, 1, 1, longest]; None when all have the same length
    rotary: torch.Tensor | None = None  # [N], or [3, N] (M-RoPE): positions for the rotary embedding; None: position_N
    shown: ShownFeatures | None = None


class Forward(Protocol):
    def logits(self, plan: Plan) -> torch.Tensor:
        """[tokens of the plan, or its logit_rows, vocabulary] float32; writes their KV."""


def prefill_plan(kv: KvSlots, pieces: list[Piece], tokens: torch.Tensor, logit_rows: list[int]) -> Plan:
    """`logit_rows`: rows whose logits are needed (the last token of each sequence whose prefill ends here)."""
    position_N = torch.cat([torch.arange(p.past, p.past + p.end - p.start) for p in pieces])
    slot_N = torch.repeat_interleave(
        torch.tensor([p.slot for p in pieces]), torch.tensor([p.end - p.start for p in pieces])
    )
    masks = [(piece, _causal_mask(piece)) for piece in pieces]
    rows = torch.tensor(logit_rows, dtype=torch.int64)
    return Plan(kv, tokens, position_N, kv.write_index(slot_N, position_N), masks, rows)


def _causal_mask(piece: Piece) -> torch.Tensor | None:
    """[T, past + T] additive; None if the piece starts its sequence (plain causal) or is one token (sees all)."""
    size = piece.end - piece.start
    if piece.past == 0 or size == 1:
        return None
    return torch.full((size, piece.past + size), float("-inf")).triu_(piece.past + 1)


def attend(plan: Plan, layer: int, query: torch.Tensor, key_value: torch.Tensor, scale: float) -> torch.Tensor:
    """Write the new keys and values, then attend over the cache.

    `query` [N, heads, head_dim]; `key_value` [N, 2 * kv_heads, head_dim], keys before values. Returns
    [N, heads * head_dim].
    """
    kv = plan.kv
    size = query.shape[-1]
    kv.flat.index_copy_(0, plan.write_index[layer], key_value.reshape(-1, size))
    if plan.pieces:
        return torch.cat([_attend_piece(kv, layer, piece, mask, query, scale) for piece, mask in plan.pieces])
    count, longest = query.shape[0], plan.longest
    cache = kv.data[:count, layer, :, :, :longest]
    # the query heads of one kv head become query positions: grouped attention without repeating the cache
    grouped = query.reshape(count, kv.kv_heads, -1, size)
    return scaled_dot_product_attention(grouped, cache[:, 0], cache[:, 1], plan.mask, scale=scale).reshape(count, -1)


def _attend_piece(
    kv: KvSlots, layer: int, piece: Piece, mask: torch.Tensor | None, query: torch.Tensor, scale: float
) -> torch.Tensor:
    size = piece.end - piece.start
    cache = kv.data[piece.slot, layer, :, None, :, : piece.past + size]
    rows = query[piece.start : piece.end].transpose(0, 1)[None]
    causal = mask is None and size > 1
    out = scaled_dot_product_attention(rows, cache[0], cache[1], mask, is_causal=causal, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1).reshape(size, -1)
