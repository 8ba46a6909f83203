"""Float64 that is float64 throughout: for tests and runs that compare gradients to many digits.

transformers' RMSNorm computes in float32 whatever the model's type, which limits agreement of gradients to about
1e-6; with this it is 1e-14. Models in other types are not changed by it in any way worth having: use it for float64
only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn


@contextmanager
def exact_norms(model: nn.Module) -> Iterator[None]:
    """Within, every RMSNorm of `model` computes in the type of its input. Raises ValueError when the model has none."""
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm") and hasattr(m, "variance_epsilon")]
    if not norms:
        raise ValueError(f"{type(model).__name__} has no RMSNorm with a variance_epsilon; expected a Llama-like model")
    for norm in norms:
        norm.forward = MethodType(_rms_norm, norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _rms_norm(norm: Any, hidden: Tensor) -> Tensor:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return cast(Tensor, norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon)))
