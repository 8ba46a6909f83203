"""Products of a weight and the rows of a step: by PyTorch's own library (MKL) or by oneDNN, as is faster for that many rows.

MKL has no AVX-512 kernels for processors of AMD. On one thread of an EPYC of family 26, all products of a decode step of
SmolLM2-135M take, in ms by MKL and by oneDNN: 30 and 18 for one row, 21 and 29 for two, 58 and 31 for 8, 126 and 53 for 32. So it
is measured when a model is loaded, for each of ROWS.

oneDNN compiles kernels for each shape (0.5 to 1 ms and half a MiB), and keeps those of the last 1,024 shapes. So it computes rows
that are padded to few numbers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

log = logging.getLogger(__name__)

ROWS = (1, 2, 4, 8, 16, 32, 64)  # of what is measured; other numbers as the next smaller one
MEASURED_BYTES = 2**26  # of weights: more than a cache holds, as in a decode step
LEAST_GAIN = 1.1  # oneDNN's least

Multiply = Callable[[Tensor, Tensor], Tensor]  # weight [out, in], x [N, in] -> [out, N]


class Products:
    """`by_onednn`: the numbers of ROWS for which oneDNN computes."""

    def __init__(self, matrices: Sequence[Tensor]) -> None:
        """Measure with these float32 weights of one shape, some 0.3 s."""
        size = max(matrices[0].nbytes, 1)
        sample = matrices[: max(1, MEASURED_BYTES // size)]
        self.by_onednn = frozenset(rows for rows in ROWS if _onednn_is_faster(sample, rows))
        if self.by_onednn:
            log.info("products of %s rows are computed by oneDNN", ", ".join(map(str, sorted(self.by_onednn))))

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        """`weight` [out, in], `x` [N, in], contiguous -> weight @ xᵀ, [out, N].

        The weight is the left operand. So MKL packs the N rows of `x`, and not the whole weight, at each step: a decode step of a
        model of 135 million parameters takes 0.7 of the time with 32 rows and 0.4 with 4 (AVX2, two threads). A transposed `x`
        would be slower with few rows."""
        count = len(x)
        nearest = max((rows for rows in ROWS if rows <= count), default=0)
        if nearest not in self.by_onednn:
            return _by_mkl(weight, x)
        extra = padded(count) - count
        return _by_onednn(weight, pad(x, (0, 0, 0, extra)))[:, :count] if extra else _by_onednn(weight, x)


def padded(count: int) -> int:
    """Rows that oneDNN computes for `count`: up to 8 as they are, up to 64 a multiple of 8, else of 32."""
    multiple = 1 if count <= 8 else 8 if count <= 64 else 32
    return count + -count % multiple


def _onednn_is_faster(matrices: Sequence[Tensor], rows: int) -> bool:
    """By the least of four processor times over all matrices, by turns, and with results that agree."""
    x = torch.randn(rows, matrices[0].shape[1], generator=torch.Generator().manual_seed(rows))
    try:
        own, other = _by_mkl(matrices[0], x), _by_onednn(matrices[0], x)
    except (AttributeError, RuntimeError):  # a PyTorch without oneDNN, or without this private function
        return False
    if not torch.allclose(own, other, rtol=1e-3, atol=1e-4 * float(own.abs().max())):
        return False
    seconds = [(_seconds(_by_mkl, matrices, x), _seconds(_by_onednn, matrices, x)) for _ in range(4)]
    own_s, onednn_s = (min(column) for column in zip(*seconds, strict=True))
    return bool(own_s > LEAST_GAIN * onednn_s)


def _seconds(multiply: Multiply, matrices: Sequence[Tensor], x: Tensor) -> float:
    started = time.process_time()
    for matrix in matrices:
        multiply(matrix, x)
    return time.process_time() - started


def _by_mkl(weight: Tensor, x: Tensor) -> Tensor:
    return torch.mm(weight, x.t())


def _by_onednn(weight: Tensor, x: Tensor) -> Tensor:
    kernel: Any = torch.ops.mkldnn._linear_pointwise
    product: Tensor = kernel(weight, x, None, "none", [], "")
    return product
