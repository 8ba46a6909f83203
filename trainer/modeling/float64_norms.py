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

ONE_PLUS_WEIGHT = ("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm")  # norms of this formula, with `eps`


@contextmanager
def exact_norms(model: nn.Module) -> Iterator[None]:
    """In this context every RMSNorm and router computes in its input's type. Raises ValueError without a norm."""
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm") and hasattr(m, "variance_epsilon")]
    others = [m for m in model.modules() if type(m).__name__ in ONE_PLUS_WEIGHT]
    if not norms and not others:
        raise ValueError(f"{type(model).__name__} has no RMSNorm with a variance_epsilon; expected a Llama-like model")
    routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter") and hasattr(m, "norm_topk_prob")]
    for norm in norms:
        norm.forward = MethodType(_rms_norm, norm)
    for norm in others:
        norm.forward = MethodType(_one_plus_weight, norm)
    for router in routers:
        router.forward = MethodType(_route, router)
    try:
        yield
    finally:
        for module in (*norms, *others, *routers):
            del module.forward


def _rms_norm(norm: Any, hidden: Tensor) -> Tensor:
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return cast(Tensor, norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon)))


def _one_plus_weight(norm: Any, hidden: Tensor) -> Tensor:
    return cast(Tensor, (1.0 + norm.weight) * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.eps)))


def _route(router: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(logits, weights of the chosen experts, their indices), as in Qwen2-MoE and Qwen3-MoE."""
    logits = nn.functional.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
    weights, chosen = torch.topk(logits.softmax(-1), router.top_k, dim=-1)
    return logits, weights / weights.sum(-1, keepdim=True) if router.norm_topk_prob else weights, chosen
