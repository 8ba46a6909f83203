"""Matrix products in float32 on a CPU: by PyTorch's own library (MKL) or by oneDNN, as is faster on this machine.

MKL has no AVX-512 kernels for processors of AMD: there the three products of a layer (output, gradients of input and
weight) take oneDNN 0.45 to 0.5 of MKL's time (AMD EPYC of family 26, one thread: 210 against 100 GFLOP/s). Which one is faster
is measured when a learner is opened, by rank 0 for all ranks; the two differ by rounding alone. In bfloat16 PyTorch uses oneDNN
itself; in float64 and on a GPU nothing changes.

oneDNN compiles kernels for each shape (0.5 to 1 ms and half a MiB), and keeps those of the last 1,024 shapes. So rows, and the
log-probs of a row, are padded to a multiple of TOKENS, and there are few shapes.

    suffix _N  token      _I  input of a layer      _O  output
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.process.parallel import Parallel
from trainer.process.private_apis import onednn_linear

log = logging.getLogger(__name__)

TOKENS = 32  # at 16 the kernels of a shape take 0.6 MiB instead of 0.45, and there are twice as many
LEAST_TOKENS, LEAST_WIDTH = 64, 128  # below, MKL is as fast: a step of width 64 took 0.31 s by MKL and 0.34 by oneDNN
LEAST_SPEED_UP = 1.1  # oneDNN's least: for less, nothing is padded
PRODUCT_TOLERANCE = 1e-4  # of a product, relative to its largest number; what is measured differs by 1e-6

_onednn = False  # of the process, as its number of threads is


def choose_products(parallel: Parallel) -> None:
    """oneDNN computes products from now on if it is faster on rank 0. Every rank calls it."""
    is_faster = parallel.device.type == "cpu" and parallel.is_main and onednn_is_faster()
    use_onednn(parallel.broadcast_object(is_faster))
    if _onednn and parallel.is_main:
        log.info("float32 products are computed by oneDNN, which is faster here than MKL")


def use_onednn(on: bool) -> None:
    """Choose for this process."""
    global _onednn
    _onednn = on


def onednn_is_faster() -> bool:
    """By the least of five times for the three products of a layer, by turns, and with results that agree; some 20 ms.

    Processor time: by the clock MKL was chosen on a busy machine, where it took twice as long.
    """
    generator = torch.Generator().manual_seed(0)
    x_NI, weight_OI, grad_NO = (
        torch.randn(*shape, generator=generator) for shape in ((256, 512), (512, 512), (256, 512))
    )
    pairs = ((x_NI, weight_OI.t()), (grad_NO, weight_OI), (grad_NO.t(), x_NI))
    try:
        agrees = all(_agree(a @ b, _by_onednn(a, b)) for a, b in pairs)
    except (RuntimeError, NotImplementedError):  # a build of PyTorch without oneDNN
        return False
    seconds = [(_seconds(torch.mm, pairs), _seconds(_by_onednn, pairs)) for _ in range(5)]
    own_s, onednn_s = (min(column) for column in zip(*seconds, strict=True))
    return agrees and own_s > LEAST_SPEED_UP * onednn_s


def _agree(own: Tensor, other: Tensor) -> bool:
    return bool((own - other).abs().max() <= PRODUCT_TOLERANCE * own.abs().max())


def _seconds(multiply: Callable[[Tensor, Tensor], Tensor], pairs: tuple[tuple[Tensor, Tensor], ...]) -> float:
    started = time.process_time()
    for a, b in pairs:
        multiply(a, b)
    return time.process_time() - started


def padding(count: int, dtype: torch.dtype, device: torch.device) -> int:
    """The number of tokens to add to `count`, so that products of this type have few shapes."""
    padded = _onednn and dtype == torch.float32 and device.type == "cpu" and count >= LEAST_TOKENS
    return -count % TOKENS if padded else 0


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b."""
    least, second, _ = sorted((*a.shape, b.shape[1]))
    return _by_onednn(a, b) if _suits(a, b) and least >= LEAST_TOKENS and second >= LEAST_WIDTH else a @ b


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, all of one type."""
    if _suits(a, b):
        total.add_(product(a, b))
    else:
        total.addmm_(a, b)


def use_products(model: nn.Module, *, compiled: bool = False) -> None:
    """Let the linear layers of a model compute by the chosen library. `compiled`: torch.compile traces PyTorch's own products."""
    for module in () if compiled else model.modules():
        if type(module) is nn.Linear:
            module.__class__ = ProductLinear


class ProductLinear(nn.Linear):
    """A linear layer whose three products are computed by the chosen library."""

    def forward(self, input: Tensor) -> Tensor:
        tokens = input.numel() // max(input.shape[-1], 1)
        if not _suits(input, self.weight) or tokens < LEAST_TOKENS or min(self.weight.shape) < LEAST_WIDTH:
            return super().forward(input)
        output: Tensor = _Linear.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]  # untyped in torch's stubs
        return output


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        return onednn_linear(x, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_OI = ctx.saved_tensors
        grad_NO, x_NI = grad.flatten(0, -2), x.flatten(0, -2)
        of_input, of_weight, of_bias = ctx.needs_input_grad
        return (
            _by_onednn(grad_NO, weight_OI).view(x.shape) if of_input else None,
            _by_onednn(grad_NO.t(), x_NI) if of_weight else None,
            grad_NO.sum(0) if of_bias else None,
        )


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:
    return onednn_linear(a, b.t(), None)


def _suits(*tensors: Tensor) -> bool:
    return _onednn and all(
        t.dtype == torch.float32 and t.device.type == "cpu" and not isinstance(t, DTensor) for t in tensors
    )
