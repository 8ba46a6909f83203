"""The generic forward: transformers' own modules over our slot cache, for every model that uses transformers' attention
interface with keys and values per head. Slower than `lean`, same `Plan`, same cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from sampler.engine.local.attention import Plan, attend

NAME = "tandem_slots"


class StockForward:
    def __init__(self, model: PreTrainedModel) -> None:
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, _no_mask)
        self.model = model

    def logits(self, plan: Plan) -> Tensor:
        """[N or len(plan.logit_rows), vocabulary], float32."""
        self.model.set_attn_implementation(NAME)
        keep: Tensor | int = 0 if plan.logit_rows is None else plan.logit_rows
        out = self.model(
            input_ids=plan.token_N[None],
            position_ids=plan.position_N[None],
            use_cache=False,
            logits_to_keep=keep,
            slot_plan=plan,
        )
        logits: Tensor = out.logits[0]
        return logits


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """The plan has the masks."""


# 7 parameters: the attention signature of transformers, and one of ours
def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    slot_plan: Plan,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: query [1, heads, N, head_dim] and so on; returns [1, N, heads, head_dim]."""
    unknown = {name for name in ("softcap", "s_aux", "position_bias") if kwargs.get(name) is not None}
    if unknown:
        raise TypeError(f"attention with {sorted(unknown)}")
    layer = module.layer_idx
    assert isinstance(layer, int)
    key_value = torch.cat((key[0], value[0])).transpose(0, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    seen = attend(slot_plan, layer, query[0].transpose(0, 1), key_value, scale)
    return seen.view(1, query.shape[2], query.shape[1], -1), None
