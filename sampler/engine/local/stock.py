"""The generic forward: transformers' own modules over our slot cache, for every model that uses transformers' attention
interface with keys and values per head. Slower than `lean`, same `Plan`, same cache.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from sampler.engine.local.attention import Plan, attend
from shared.weights.routers import routers_of

NAME = "tandem_slots"


class StockForward:
    def __init__(self, model: PreTrainedModel) -> None:
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, _no_mask)
        self.model = model
        self._routers = routers_of(model)
        self._chosen: dict[int, Tensor] = {}  # {layer: [N, experts of a token]} of the last forward
        for layer, router in self._routers:
            router.register_forward_hook(partial(self._record, layer))

    @property
    def records_experts(self) -> bool:
        """Whether the last forward said which experts computed each token."""
        top_k = getattr(self.model.config.get_text_config(), "num_experts_per_tok", 0)
        shapes = {tuple(chosen.shape[1:]) for chosen in self._chosen.values()}
        return bool(self._routers) and len(self._chosen) == len(self._routers) and shapes == {(top_k,)}

    def _record(self, layer: int, router: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, tuple) and len(output) == 3 and not output[2].is_floating_point():
            self._chosen[layer] = output[2]

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
        if plan.kv.experts is not None:
            self._write_experts(plan, plan.kv.experts)
        logits: Tensor = out.logits[0]
        return logits

    def _write_experts(self, plan: Plan, experts: Tensor) -> None:
        for layer, chosen in self._chosen.items():
            of_token = chosen.to(experts.dtype)
            if not plan.pieces:
                experts[torch.arange(len(of_token)), plan.position_N, layer] = of_token
            for piece, _ in plan.pieces:
                stop = piece.past + piece.end - piece.start
                experts[piece.slot, piece.past : stop, layer] = of_token[piece.start : piece.end]


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
