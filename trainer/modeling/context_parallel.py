"""Context parallelism: the processes of one "cp" line have the same row, and each computes a slice of its tokens.

    by tokens       embedding, norms, matrices, log-probs   each process a slice of equal length (`Row.padded`)
    by heads        attention                               each process some heads, over the whole row

    q k v (heads, slice) ─all-to-all─▶ (heads / cp, row) ─▶ attention by the whole row's mask ─all-to-all─▶ (heads, slice)

DeepSpeed-Ulysses, arXiv 2309.14509. It does not change the mask, so that prefix trees stay exact; ring attention would
need chains. A layer with a sliding window sees the whole row too: its window is applied here, for rows of one sequence.
Log-probs are gathered at the end: every process has all of them and computes the same loss, and its backward starts from those
of its slice. So each has a part of the parameters' gradients, which FSDP sums.

    suffix _N  token of the row      _U  distinct (token, distribution)      C  processes that share the row
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from shared.errors import ConfigError
from trainer.modeling.all_to_all import exchange
from trainer.modeling.node_attention import BY_NODE
from trainer.process.peers import Peers

OVER_SLICES = "over_slices_by_"  # + an attn_implementation, registered below

Attention = Callable[..., tuple[Tensor, Tensor | None]]


def of_slices(implementation: str, context: Peers) -> str:
    """The attn_implementation to load a model with if processes share each row. One process: unchanged."""
    return implementation if context.size == 1 else OVER_SLICES + implementation


def plain_name(implementation: str) -> str:
    """Inverse of `of_slices`."""
    return implementation.removeprefix(OVER_SLICES)


def over_slices(implementation: str) -> bool:
    """Whether it is one of `of_slices`, for several processes."""
    return implementation.startswith(OVER_SLICES)


def check_slices(model: PreTrainedModel, context: Peers, *, tp_size: int, obstacle: str | None) -> None:
    """Raises ConfigError for layers that the processes of `context` cannot share: with more than attention to all tokens or to
    those of a window (`obstacle`), and for heads that cannot be split evenly.
    """
    if context.size == 1:
        return
    if obstacle is not None:
        raise ConfigError(
            f"model type {model.config.model_type}: {obstacle}; expected full attention and sliding windows only for cp_size "
            f"{context.size}: use cp_size 1"
        )
    heads = model.config.num_attention_heads
    if heads % (tp_size * context.size):
        raise ConfigError(
            f"cp_size is {context.size} and tp_size {tp_size}, but num_attention_heads is {heads}; expected their product to "
            "divide it"
        )


def _repeats(key_heads: int, size: int) -> int:
    """How often each key head is sent, to make their number a multiple of `size`."""
    return next(times for times in range(1, size + 1) if key_heads * times % size == 0)


def own_part(num_tokens: int, predictor_U: Tensor, context: Peers) -> tuple[slice, Tensor]:
    """This process's tokens of the row, and the indices of the log-probs predicted there."""
    length, rest = divmod(num_tokens, context.size)
    if rest:
        raise ValueError(f"a row of {num_tokens} tokens for {context.size} processes; use Row.padded({context.size})")
    start = context.rank * length
    own_U = torch.nonzero((predictor_U >= start) & (predictor_U < start + length))[:, 0]
    return slice(start, start + length), own_U


def of_all(own: Tensor, own_U: Tensor, count: int, context: Peers) -> Tensor:
    """Gather all `count` values; this process has those at `own_U`, the only ones that its backward uses (see above)."""
    result: Tensor = _OfAll.apply(own, own_U, count, context)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


class _OfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, own_U: Tensor, count: int, context: Peers) -> Tensor:
        ctx.save_for_backward(own_U)
        whole = own.new_zeros(count, *own.shape[1:]).index_copy_(0, own_U, own)
        dist.all_reduce(whole, group=context.group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad_U: Tensor) -> tuple[Tensor | None, ...]:
        (own_U,) = ctx.saved_tensors
        return grad_U[own_U], None, None, None


# 7 parameters: the attention signature of transformers, and two of ours
def attend(
    inner: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    context: Peers | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function for transformers: (1, heads, slice, D) in, (1, slice, heads, D) out; the mask is the row's.
    Its parameters are transformers' own, and two of ours.

    Raises ValueError for a model that does not pass `context` to its attention, or not the window of its configuration, and for
    a window in a row of several sequences, or by another attention than sdpa.
    """
    if context is None:
        raise ValueError(f"{type(module).__name__} got no context; expected a model that passes keyword arguments on")
    window = _window(module, options.pop("sliding_window", None))
    if window is not None and (attention_mask is not None or inner != "sdpa"):
        raise ValueError(
            f"{type(module).__name__} has a window of {window} tokens; expected rows of one sequence, and sdpa"
        )
    times = _repeats(key.shape[1], context.size)
    if times > 1:
        key, value = (x.repeat_interleave(times, 1) for x in (key, value))
    query, key, value = _whole_row((query, key, value), context)
    attention: Attention = AttentionInterface()[inner]
    with _head_groups(module, query.shape[1] // key.shape[1]):
        if window is None:
            out, _ = attention(module, query, key, value, attention_mask, **options)
        else:
            out = _windowed(attention, module, (query, key, value), window, options)
    return _own_slice(out, context), None


def _window(module: nn.Module, passed: int | None) -> int | None:
    """Tokens that a query of this layer sees, itself among them; None: all. Longer ones than a probe are known by it alone."""
    config: Any = getattr(module, "config", None)
    expected = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[module.layer_idx] != "sliding_attention":
        expected = None
    if passed != expected:
        raise ValueError(
            f"{type(module).__name__} passes sliding_window {passed} to its attention, its configuration has {expected}; "
            "expected the same"
        )
    return expected


@contextmanager
def _head_groups(module: Any, groups: int) -> Iterator[None]:
    """In this context the module has this number of query heads for each key head: some key heads were copied."""
    before = getattr(module, "num_key_value_groups", None)
    if before is not None:
        module.num_key_value_groups = groups
    try:
        yield
    finally:
        if before is not None:
            module.num_key_value_groups = before


def _windowed(
    attention: Attention, module: nn.Module, parts: Sequence[Tensor], window: int, options: Mapping[str, Any]
) -> Tensor:
    """(1, row, heads, D): by blocks of `window` queries, so that neither work nor masks grow with the row's square."""
    query, key, value = parts
    outs = []
    for start in range(0, query.shape[2], window):
        stop, first = min(start + window, query.shape[2]), max(0, start - window + 1)
        query_Q = torch.arange(start, stop, device=query.device)[:, None]
        key_K = torch.arange(first, stop, device=query.device)
        sees_QK = (key_K <= query_Q) & (query_Q - key_K < window)
        seen = key[:, :, first:stop], value[:, :, first:stop]
        outs.append(attention(module, query[:, :, start:stop], *seen, sees_QK[None, None], **options)[0])
    return torch.cat(outs, 1)


def _whole_row(parts: tuple[Tensor, ...], context: Peers) -> list[Tensor]:
    """Each (1, heads, slice, D) as (1, heads / C, row, D), in one exchange."""
    size = context.size
    shapes = [
        (size, x.shape[1] // size, *x.shape[2:]) for x in parts
    ]  # first dimension: the target process, then the source
    sent = torch.cat([x.reshape(size, -1) for x in parts], 1)
    widths = [x.numel() // size for x in parts]
    received = torch.split(exchange(sent, context), widths, 1)
    return [x.reshape(shape).transpose(0, 1).flatten(1, 2)[None] for x, shape in zip(received, shapes, strict=True)]


def _own_slice(out: Tensor, context: Peers) -> Tensor:
    """(1, row, heads / C, D) as (1, slice, heads, D)."""
    _, n, heads, width = out.shape
    received = exchange(out.reshape(context.size, n // context.size, heads, width), context)
    return received.transpose(0, 1).flatten(1, 2)[None]


for _inner in (BY_NODE, "sdpa", "flex_attention"):  # eager is the model's own code and not registered
    AttentionInterface.register(OVER_SLICES + _inner, partial(attend, _inner))
