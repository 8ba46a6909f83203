"""An all-to-all of rows between processes, with its gradient."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.process.peers import Peers


def exchange(x: Tensor, peers: Peers, sent: Sequence[int] = (), received: Sequence[int] = ()) -> Tensor:
    """Rows of `x` for each process, in order of rank; returns those from each process. `sent`, `received`: their numbers; (): the
    same number for each.
    """
    result: Tensor = _Exchange.apply(x, peers, sent, received)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
    return result


class _Exchange(torch.autograd.Function):
    """Its adjoint is the exchange in the opposite direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        ctx.peers, ctx.sent, ctx.received = peers, sent, received
        out = x.new_empty(sum(received) if sent else len(x), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), list(received) or None, list(sent) or None, group=peers.group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return exchange(grad, ctx.peers, ctx.received, ctx.sent), None, None, None
