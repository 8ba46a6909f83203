"""Context parallelism: the processes of one "cp" line have the same row, and each computes a slice of its tokens.

    by tokens       embedding, norms, matrices, log-probs   each process a slice of equal length (`Row.padded`)
    by heads        attention                               each process some heads, over the whole row

    q k v (heads, slice) ─all-to-all─▶ (heads / cp, row) ─▶ attention by the whole row's mask ─all-to-all─▶ (heads, slice)

DeepSpeed-Ulysses, arXiv 2309.14509. It does not change the mask, so that prefix trees stay exact; ring attention would
need chains. Log-probs are gathered at the end: every process has all of them and computes the same loss, and its backward
starts from those of its slice. So each has a part of the parameters' gradients, which FSDP sums.

    suffix _N  token of the row      _U  distinct (token, distribution)      C  processes that share the row
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from shared.errors import ConfigError
from trainer.modeling.node_attention import BY_NODE
from trainer.process.parallel import Peers

OVER_SLICES = "over_slices_by_"  # + an attn_implementation, registered below

Attention = Callable[..., tuple[Tensor, Tensor | None]]


def of_slices(implementation: str, context: Peers) -> str:
    """The attn_implementation to load a model with if processes share each row. One process: unchanged."""
    return implementation if context.size == 1 else OVER_SLICES + implementation


def plain_name(implementation: str) -> str:
    """Inverse of `of_slices`."""
    return implementation.removeprefix(OVER_SLICES)


def cut_sequences(model: PreTrainedModel, context: Peers, *, tp_size: int, obstacle: str | None) -> None:
    """Prepare `model` for its share of the heads, by an attention of `of_slices`. Call after `cut_layers`. One process: no-op.

    Raises ConfigError for layers with more than full attention, and for heads that cannot be split evenly.
    """
    if context.size == 1:
        return
    if obstacle is not None:
        raise ConfigError(
            f"model type {model.config.model_type}: {obstacle}; expected full attention only for cp_size {context.size}: "
            "use cp_size 1"
        )
    heads = model.config.num_attention_heads
    if heads % (tp_size * context.size):
        raise ConfigError(
            f"cp_size is {context.size} and tp_size {tp_size}, but num_attention_heads is {heads}; expected their product to "
            "divide it"
        )
    keys = model.config.num_key_value_heads // tp_size
    repeating: list[Any] = [module for module in model.modules() if hasattr(module, "num_key_value_groups")]
    for module in repeating:  # number of query heads per key head
        module.num_key_value_groups //= _repeats(keys, context.size)


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

    Raises ValueError for a model that does not pass `context` to its attention.
    """
    if context is None:
        raise ValueError(f"{type(module).__name__} got no context; expected a model that passes keyword arguments on")
    times = _repeats(key.shape[1], context.size)
    if times > 1:
        key, value = (x.repeat_interleave(times, 1) for x in (key, value))
    query, key, value = _whole_row((query, key, value), context)
    attention: Attention = AttentionInterface()[inner]
    out, _ = attention(module, query, key, value, attention_mask, **options)
    return _own_slice(out, context), None


def _whole_row(parts: tuple[Tensor, ...], context: Peers) -> list[Tensor]:
    """Each (1, heads, slice, D) as (1, heads / C, row, D), in one exchange."""
    size = context.size
    shapes = [
        (size, x.shape[1] // size, *x.shape[2:]) for x in parts
    ]  # first dimension: the target process, then the source
    sent = torch.cat([x.reshape(size, -1) for x in parts], 1)
    widths = [x.numel() // size for x in parts]
    received = torch.split(_exchange(sent, context), widths, 1)
    return [x.reshape(shape).transpose(0, 1).flatten(1, 2)[None] for x, shape in zip(received, shapes, strict=True)]


def _own_slice(out: Tensor, context: Peers) -> Tensor:
    """(1, row, heads / C, D) as (1, slice, heads, D)."""
    _, n, heads, width = out.shape
    received = _exchange(out.reshape(context.size, n // context.size, heads, width), context)
    return received.transpose(0, 1).flatten(1, 2)[None]


def _exchange(x: Tensor, context: Peers) -> Tensor:
    """All-to-all along the first dimension, in order of rank."""
    result: Tensor = _Exchange.apply(x, context)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


class _Exchange(torch.autograd.Function):
    """The all-to-all is its own adjoint."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Peers) -> Tensor:
        ctx.context = context
        received = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, x.contiguous(), group=context.group)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Exchange.apply(grad, ctx.context), None  # type: ignore[no-untyped-call]  # untyped in torch's stubs


for _inner in (BY_NODE, "sdpa", "flex_attention"):  # eager is the model's own code and not registered
    AttentionInterface.register(OVER_SLICES + _inner, partial(attend, _inner))
