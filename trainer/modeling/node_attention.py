"""Attention over a row of trees node by node: memory linear in tokens, work proportional to the visible pairs. For CPUs.

A row, depth first, is split into spans: consecutive tokens with the same ancestors before the span.

    a chain      any number of tokens, each the child of the previous one: inside, the causal kernel, no mask
    short runs   up to SPAN tokens below one parent: inside, a mask of at most SPAN × SPAN, created for each call

    row   p p p p a a b b c c     p ──┬ a      spans, with SPAN 4:   [p p p p a a]  a chain          path: none
                                      ├ b                            [b b c c]      two short runs   path: p p p p
                                      └ c

A span sees its whole path, so path attention is one call of PyTorch's flash kernel, and attention inside the span another.
Two results over disjoint keys merge exactly by their log-sum-exp; the kernel's backward, given the merged result and
log-sum-exp, gives each call's part of the gradient, so that the parts add up: FlashAttention's algorithm 4, arXiv 2205.14135.

    suffix _N  token of the row      _G  query heads per key head   _K  key heads   _D  head width
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from shared.tokens.trie import Int64
from trainer.process.private_apis import flash_for_cpu, flash_for_cpu_backward

BY_NODE = "by_node"  # attn_implementation of transformers, registered below
SPAN = 128
HARMLESS = ("position_ids", "cache_position", "use_cache", "is_causal", "output_router_logits", "output_attentions")


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """Tokens [start, stop) of the row. `path`: the slices of their ancestors before `start`, in order."""

    start: int
    stop: int
    path: tuple[tuple[int, int], ...]
    is_chain: bool


@dataclass(frozen=True, slots=True)
class NodeSpans:
    """The spans of a row, which the model's layers receive instead of a mask."""

    ends_N: Tensor
    spans: tuple[NodeSpan, ...]


def spans_of_row(ends_N: Tensor) -> NodeSpans:
    """The spans of a row; one Python step per run of tokens, not per token."""
    return NodeSpans(ends_N, tuple(_spans(ends_N.numpy(), SPAN)))


def _spans(ends_N: Int64, size: int) -> Iterator[NodeSpan]:
    """From each start the longer of: consecutive runs that form a chain, and short runs below the same parent that fit.

    In pre-order the next token is a token's only child iff their subtrees end together.
    """
    starts = np.flatnonzero(np.append(True, ends_N[1:] != ends_N[:-1]))
    stops, ends = np.append(starts[1:], len(ends_N)), ends_N[starts]
    open_runs: list[int] = []  # runs whose subtree is not finished: the current path
    first, number = 0, len(starts)
    while first < number:
        start = int(starts[first])
        _close(open_runs, ends, start)
        last = first
        while stops[last] < ends[last]:  # the next run is its first child
            last += 1
        limit = min(start + size, int(ends[open_runs[-1]]) if open_runs else len(ends_N))
        near = int(np.searchsorted(stops, limit, side="right")) - 1
        yield NodeSpan(start, int(stops[max(last, near)]), _slices(starts[open_runs], stops[open_runs]), last >= near)
        last = max(last, near)
        for run in range(first, last + 1):
            _close(open_runs, ends, int(starts[run]))
            open_runs.append(run)
        first = last + 1


def _close(open_runs: list[int], ends: Int64, start: int) -> None:
    while open_runs and ends[open_runs[-1]] <= start:
        open_runs.pop()


def _slices(starts: Int64, stops: Int64) -> tuple[tuple[int, int], ...]:
    """Neighbors joined."""
    if not len(starts):
        return ()
    cut = starts[1:] != stops[:-1]
    return tuple(zip(starts[np.append(True, cut)].tolist(), stops[np.append(cut, True)].tolist(), strict=True))


# 7 parameters: the attention signature of transformers, and one of ours
@torch.compiler.disable(reason="a loop over spans, of kernels that gain nothing")  # type: ignore[untyped-decorator]  # torch's own has no types
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    tree_spans: NodeSpans | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """The attention function for transformers: (1, heads, N, D) in, (1, N, heads, D) out. Its parameters are transformers' own,
    and `tree_spans`.

    Raises ValueError for a model that does not pass `tree_spans` to its attention, and for one that needs more than
    attention to ancestors: a window, a cap on logits, sinks.
    """
    unknown = [name for name, value in more.items() if name not in HARMLESS and not _is_nothing(value)]
    if unknown:
        raise ValueError(f"{type(module).__name__} needs {', '.join(unknown)}, which {BY_NODE} does not support")
    if tree_spans is None or attention_mask is not None:
        raise ValueError(
            f"{type(module).__name__} got no tree_spans; expected a model that passes keyword arguments on: "
            "use attn_implementation 'sdpa'"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = _NodeAttention.apply(query, key, value, tree_spans, scale)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return out, None


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, bool | int | float) and not value)


class _NodeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, spans: NodeSpans, scale: float) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        q_GKND = _grouped(query, groups)
        out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
        out_GKND = _grouped(out.transpose(1, 2), groups)
        lse_GKN = torch.empty(q_GKND.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        for span in spans.spans:
            here = slice(span.start, span.stop)
            q = q_GKND[:, :, here]
            mask = _inner_mask(spans, span, query.dtype)
            o, lse = flash_for_cpu(
                q, _here(key, here, groups), _here(value, here, groups), 0.0, span.is_chain, attn_mask=mask, scale=scale
            )
            if span.path:
                k, v = (_on_path(x, span.path, groups) for x in (key, value))
                o, lse = _merged(o, lse, *flash_for_cpu(q, k, v, 0.0, False, scale=scale))
            out_GKND[:, :, here], lse_GKN[:, :, here] = o, lse
        ctx.save_for_backward(query, key, value, out, lse_GKN)
        ctx.spans, ctx.scale = spans, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse_GKN = ctx.saved_tensors
        groups = query.shape[1] // key.shape[1]
        q_GKND, out_GKND, grad_GKND = (_grouped(x, groups) for x in (query, out.transpose(1, 2), grad.transpose(1, 2)))
        grad_query = torch.empty_like(query)
        grad_q_GKND = _grouped(grad_query, groups)
        # a path token gets a gradient from every span below it: summed in at least float32, rounded once
        grad_key, grad_value = (torch.zeros_like(x, dtype=lse_GKN.dtype) for x in (key, value))
        for span in ctx.spans.spans:
            here = slice(span.start, span.stop)
            g, q, o = (x[:, :, here] for x in (grad_GKND, q_GKND, out_GKND))
            lse = lse_GKN[:, :, here]
            mask = _inner_mask(ctx.spans, span, query.dtype)
            dq, dk, dv = flash_for_cpu_backward(
                g,
                q,
                _here(key, here, groups),
                _here(value, here, groups),
                o,
                lse,
                0.0,
                span.is_chain,
                attn_mask=mask,
                scale=ctx.scale,
            )
            _add(grad_key, dk, [(span.start, span.stop)])
            _add(grad_value, dv, [(span.start, span.stop)])
            if span.path:
                k, v = (_on_path(x, span.path, groups) for x in (key, value))
                path_dq, dk, dv = flash_for_cpu_backward(g, q, k, v, o, lse, 0.0, False, scale=ctx.scale)
                dq = dq + path_dq
                _add(grad_key, dk, span.path)
                _add(grad_value, dv, span.path)
            grad_q_GKND[:, :, here] = dq
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(1, G·K heads, N, D) as a view (G, K, N, D): query groups are the kernel's batch, so keys are never repeated."""
    _, heads, n, d = x.shape
    return x.view(heads // groups, groups, n, d).transpose(0, 1)


def _here(x: Tensor, where: slice, groups: int) -> Tensor:
    return x[:, :, where].expand(groups, -1, -1, -1)


def _on_path(x: Tensor, path: Sequence[tuple[int, int]], groups: int) -> Tensor:
    parts = [x[:, :, start:stop] for start, stop in path]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).expand(groups, -1, -1, -1)


def _inner_mask(spans: NodeSpans, span: NodeSpan, dtype: torch.dtype) -> Tensor | None:
    """Additive, (n, n): the rule k <= q < ends[k] inside the span. None for a chain, which uses the causal kernel."""
    if span.is_chain:
        return None
    index = torch.arange(span.start, span.stop)
    query, key = index[:, None], index[None, :]
    hidden = (key > query) | (query >= spans.ends_N[span.start : span.stop])
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[None, None]


def _merged(a: Tensor, lse_a: Tensor, b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention over two disjoint sets of keys."""
    lse = torch.logaddexp(lse_a, lse_b)
    return torch.exp(lse_a - lse)[..., None] * a + torch.exp(lse_b - lse)[..., None] * b, lse


def _add(total: Tensor, parts_GKLD: Tensor, slices: Sequence[tuple[int, int]]) -> None:
    summed = parts_GKLD.sum(0, keepdim=True, dtype=total.dtype) if len(parts_GKLD) > 1 else parts_GKLD
    offset = 0
    for start, stop in slices:
        total[:, :, start:stop] += summed[:, :, offset : offset + stop - start]
        offset += stop - start


AttentionInterface.register(BY_NODE, attend)
