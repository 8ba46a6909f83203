"""Attention over trees: query q sees key k iff k <= q < ends[k], which is "k is q or an ancestor of q".

The rule holds for one tree and for a row of many trees. Four ways to apply it to a model of transformers
(`attn_implementation`):

    by_node         spans of the row (trainer/modeling/node_attention.py): memory linear in tokens, exact in every type. CPU
    flex_attention  a BlockMask built from the intervals without N×N: CUDA (its backward needs CUDA)
    sdpa            a dense bool mask (1, 1, N, N), N² bytes; none for a row with one sequence. Any device
    eager           a dense additive mask, N² floats per head. Any device and any model, since it is the model's own code

`auto` uses the first that fits the model, by measurement (`trainer/modeling/forward_choice.py`). A model without tree support
gets rows of one sequence each, and its own causal attention.

    suffix _N  token of the row      _B  block of BLOCK tokens      _QK  queries × keys
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from trainer.modeling.node_attention import BY_NODE, NodeSpans, spans_of_row
from trainer.trees.packing import Row

BLOCK = 128  # FlexAttention's block; rows are padded to a multiple of it

HIDDEN = -3e38  # additive mask value, representable in every trained type

Mask = Tensor | BlockMask | NodeSpans | None
MaskBuilder = Callable[[Tensor], Mask]  # ends_N -> mask for TreeLM


def choose(implementation: str, device: torch.device | str, *, linear: bool = False) -> MaskBuilder:
    """The mask builder for a model loaded with this `attn_implementation`; `linear`: for rows of one sequence each.

    eager adds its mask: a bool mask would shift logits by 1. Raises ValueError for an implementation without tree masks
    (flash attention) or without a kernel on the device.
    """
    kind = torch.device(device).type
    if implementation == "flex_attention" and kind != "cuda":
        raise ValueError(f"attn_implementation 'flex_attention' has no backward on {device}; expected 'by_node' there")
    if implementation == BY_NODE:
        if kind != "cpu":
            raise ValueError(f"attn_implementation 'by_node' is for CPUs; expected 'flex_attention' on {device}")
        return spans_of_row
    if linear:
        return no_mask
    builders: dict[str, MaskBuilder] = {
        "sdpa": sdpa_mask,
        "eager": added_mask,
        "flex_attention": interval_block_mask,
    }
    if implementation not in builders:
        raise ValueError(
            f"attn_implementation is {implementation!r}; expected {BY_NODE}, {', '.join(builders)} for token trees"
        )
    return builders[implementation]


def no_mask(ends_N: Tensor) -> None:
    """For a row with one sequence: the model's own causal attention. Raises ValueError for other rows."""
    if not _is_one_sequence(ends_N):
        raise ValueError(
            "a row of several sequences for a model that takes one; use pack(…, one_sequence_per_row=True)"
        )


def _is_one_sequence(ends_N: Tensor) -> bool:
    return bool((ends_N == len(ends_N)).all())


def sdpa_mask(ends_N: Tensor) -> Tensor | None:
    """None for a row with one sequence, for which SDPA has a causal kernel; else the dense mask."""
    return None if _is_one_sequence(ends_N) else dense_mask(ends_N)


def dense_mask(ends_N: Tensor) -> Tensor:
    """(1, 1, N, N) bool, True where query sees key."""
    index_N = torch.arange(len(ends_N), device=ends_N.device)
    query, key = index_N[:, None], index_N[None, :]
    return ((key <= query) & (query < ends_N[None, :]))[None, None]


def added_mask(ends_N: Tensor) -> Tensor:
    """The dense mask as float32, 0 where query sees key."""
    seen = dense_mask(ends_N)
    return torch.zeros(seen.shape, device=ends_N.device).masked_fill_(~seen, HIDDEN)


def interval_block_mask(ends_N: Tensor) -> BlockMask:
    """The rule for FlexAttention, in O(N + blocks²) memory; the length must be a multiple of BLOCK (`Row.padded`)."""
    n = len(ends_N)
    if n % BLOCK:
        raise ValueError(f"a row of {n} tokens; expected a multiple of {BLOCK}: use Row.padded({BLOCK})")
    some_QK, full_QK = block_rule(ends_N)
    partial, full = _ordered(some_QK & ~full_QK), _ordered(full_QK)

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends_N[key])

    return BlockMask.from_kv_blocks(*partial, *full, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=(n, n))


def block_rule(ends_N: Tensor) -> tuple[Tensor, Tensor]:
    """Which blocks (blocks, blocks) have a visible pair, and which are fully visible.

    In an earlier block, some key is visible iff the greatest end in it is beyond the first query; the whole block is
    visible iff the least end in it is not before the last query. A token sees itself, so a diagonal block has visible
    pairs, but is never fully visible.
    """
    blocks = ends_N.view(-1, BLOCK)
    index_B = torch.arange(len(blocks), device=ends_N.device)
    query, key = index_B[:, None], index_B[None, :]
    some_QK = (key == query) | ((key < query) & (blocks.amax(1)[None, :] > query * BLOCK))
    full_QK = (key < query) & (blocks.amin(1)[None, :] >= (query + 1) * BLOCK)
    return some_QK, full_QK


def mask_counts(rows: Sequence[Row], mask: MaskBuilder) -> list[float]:
    """Over these rows: [tokens, padding tokens, blocks with a visible pair, blocks]; only FlexAttention pads.

    Blocks have BLOCK × BLOCK pairs; their density is the work of a kernel that skips empty blocks.
    """
    tokens = padding = visible = blocks = 0
    for row in rows:
        padded = row.padded(BLOCK)
        some_QK, _ = block_rule(padded.ends_N)
        tokens += row.num_tokens
        padding += padded.num_tokens - row.num_tokens if mask is interval_block_mask else 0
        visible, blocks = visible + int(some_QK.sum()), blocks + some_QK.numel()
    return [float(tokens), float(padding), float(visible), float(blocks)]


def _ordered(blocks_QK: Tensor) -> tuple[Tensor, Tensor]:
    """FlexAttention's format, (1, 1, blocks) and (1, 1, blocks, blocks): number of key blocks per query block, and
    their order.
    """
    count_Q = blocks_QK.sum(dim=1, dtype=torch.int32)
    index_QK = torch.argsort(blocks_QK.to(torch.int8), dim=1, descending=True, stable=True).to(torch.int32)
    return count_Q[None, None], index_QK[None, None].contiguous()
