"""Float64 that is float64 throughout: for tests and runs that compare gradients to many digits.

transformers' RMSNorm computes in float32 for models of any dtype, which limits agreement of gradients to about
1e-6, and its routers of experts do, which limits it to 5e-8; with this it is 1e-14. Models in other types are not changed by it
in any way worth having: use it for float64 only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn


@contextmanager
def exact_norms(model: nn.Module) -> Iterator[None]:
    """Within, every RMSNorm and router of `model` computes in the type of its input. Raises ValueError without such a norm."""
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
    """(logits, weights of the chosen experts, which they are), as in Qwen2-MoE and Qwen3-MoE."""
    logits = nn.functional.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
    weights, chosen = torch.topk(logits.softmax(-1), router.top_k, dim=-1)
    return logits, weights / weights.sum(-1, keepdim=True) if router.norm_topk_prob else weights, chosen
