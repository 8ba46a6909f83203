"""Full float64 computation, for tests and runs that compare gradients to many digits.

transformers' RMSNorm computes in float32 for models of any dtype, which limits agreement of gradients to about 1e-6;
expert routers do too, which limits it to 5e-8. With this it is 1e-14. Use it only for float64.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn


@contextmanager
def exact_norms(model: nn.Module) -> Iterator[None]:
    """In this context every RMSNorm and router computes in its input's type. Raises ValueError without such a norm."""
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm") and hasattr(m, "variance_epsilon")]
    if not norms:
        raise ValueError(f"{type(model).__name__} has no RMSNorm with a variance_epsilon; expected a Llama-like model")
    routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter") and hasattr(m, "norm_topk_prob")]
    for norm in norms:
        norm.forward = MethodType(_rms_norm, norm)
    for router in routers:
        router.forward = MethodType(_route, router)
    try:
        yield
    finally:
        for module in (*norms, *routers):
            del module.forward


def _rms_norm(norm: Any, hidden: Tensor) -> Tensor:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return cast(Tensor, norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon)))


def _route(router: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(logits, weights of the chosen experts, their indices), as in Qwen2-MoE and Qwen3-MoE."""
    logits = nn.functional.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
    weights, chosen = torch.topk(logits.softmax(-1), router.top_k, dim=-1)
    return logits, weights / weights.sum(-1, keepdim=True) if router.norm_topk_prob else weights, chosen
