"""Rows of which each process of a line has a slice: gathered, scattered, and multiplied, with gradients.

suffix _N  token of the row      _S  token of a slice      _O  output      _I  input
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.modeling.products import product
from trainer.process.peers import Peers

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before torch 2.13
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def whole_row(x_S: Tensor, line: Peers, tokens: int, *, summed: bool) -> Tensor:
    """(1, tokens, …) of the slices. The gradient is summed over the line, or, where each process has all of it, sliced."""
    result: Tensor = _WholeRow.apply(x_S, line, tokens, summed)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


def own_slice(x_N: Tensor, line: Peers, *, summed: bool) -> Tensor:
    """This process's slice of (1, tokens, …): of the sum over the line, or of what every process has alike. Its gradient is
    gathered.
    """
    result: Tensor = _OwnSlice.apply(x_N, line, summed)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


def own_tokens(tokens: int, line: Peers) -> slice:
    """This process's of so many tokens: those of its slice without padding, which may be none."""
    count = _slice_length(tokens, line)
    return slice(min(line.rank * count, tokens), min((line.rank + 1) * count, tokens))


def with_padding(x_S: Tensor, tokens: int, line: Peers) -> Tensor:
    """(1, …) of `own_tokens` as a slice, with zeros for what it lacks."""
    missing = _slice_length(tokens, line) - x_S.shape[1]
    return torch.cat([x_S, x_S.new_zeros(1, missing, *x_S.shape[2:])], 1) if missing else x_S


def added_up(part: Tensor, line: Peers) -> Tensor:
    """The sum over the line. Its gradient, which every process has alike, is that of each part."""
    result: Tensor = _AddedUp.apply(part, line)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


def _slice_length(tokens: int, line: Peers) -> int:
    return -(-tokens // line.size)


class _AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, line: Peers) -> Tensor:
        whole = part.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=line.group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _WholeRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_S: Tensor, line: Peers, tokens: int, summed: bool) -> Tensor:
        ctx.line, ctx.summed = line, summed
        return _gathered(x_S, line, tokens)

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, ...]:
        return _scattered(grad_N, ctx.line, summed=ctx.summed), None, None, None


class _OwnSlice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_N: Tensor, line: Peers, summed: bool) -> Tensor:
        ctx.line, ctx.tokens = line, x_N.shape[1]
        return _scattered(x_N, line, summed=summed)

    @staticmethod
    def backward(ctx: Any, grad_S: Tensor) -> tuple[Tensor | None, ...]:
        return _gathered(grad_S, ctx.line, ctx.tokens), None, None


def _gathered(x_S: Tensor, line: Peers, tokens: int) -> Tensor:
    whole = x_S.new_empty(1, line.size * x_S.shape[1], *x_S.shape[2:])
    _all_gather(whole[0], x_S[0].contiguous(), group=line.group)
    return whole if whole.shape[1] == tokens else whole[:, :tokens].clone()  # FSDP2 wants no view of a layer


def _scattered(x_N: Tensor, line: Peers, *, summed: bool) -> Tensor:
    assert len(x_N) == 1, "rows go through a model one by one"
    count = _slice_length(x_N.shape[1], line)
    missing = line.size * count - x_N.shape[1]
    if missing:
        x_N = torch.cat([x_N, x_N.new_zeros(1, missing, *x_N.shape[2:])], 1)
    if not summed:
        return x_N[:, line.rank * count : (line.rank + 1) * count].clone()  # not a view, which would keep the row
    own = x_N.new_empty(1, count, *x_N.shape[2:])
    _reduce_scatter(own[0], x_N[0].contiguous(), group=line.group)
    return own


class GatheredAgain:
    """A row whose slices are gathered once more for a backward, and held from the first matrix that needs it to the last."""

    def __init__(self, line: Peers, tokens: int) -> None:
        self._line, self._tokens = line, tokens
        self._row: Tensor | None = None
        self.users = 0

    def take(self, x_S: Tensor) -> Tensor:
        row = _gathered(x_S, self._line, self._tokens) if self._row is None else self._row
        self.users -= 1
        self._row = row if self.users else None
        return row


class Slices(NamedTuple):
    """What a block knows of a row that it gathered."""

    own_S: Tensor
    again: GatheredAgain


@dataclass(frozen=True, slots=True)
class OfWholeRow:
    """The forward of a linear layer that keeps a slice of a gathered row for its weight's gradient, not the row."""

    module: nn.Linear
    own: Callable[[Tensor], Tensor]

    def __call__(self, x_N: Tensor) -> Tensor:
        slices: Slices | None = getattr(x_N, "slices", None)
        weight, bias = self.module.weight, self.module.bias
        if slices is None or not (weight.requires_grad and torch.is_grad_enabled()):
            return self.own(x_N)
        slices.again.users += 1
        result: Tensor = _Product.apply(x_N, slices.own_S, weight, bias, slices.again, self.own)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
        return result


class _Product(torch.autograd.Function):
    # 7 parameters: torch passes a function's tensors and options one by one
    @staticmethod
    def forward(
        ctx: Any,
        x_N: Tensor,
        x_S: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        again: GatheredAgain,
        own: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(x_S, weight_OI)
        ctx.again = again
        return own(x_N)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_S, weight_OI = ctx.saved_tensors
        grad_NO, row = grad.flatten(0, -2), ctx.again.take(x_S)
        of_input, _, _, of_bias, *_ = ctx.needs_input_grad
        return (
            product(grad_NO, weight_OI).view(row.shape) if of_input else None,
            None,
            product(grad_NO.t(), row.flatten(0, -2)),
            grad_NO.sum(0) if of_bias else None,
            None,
            None,
        )
