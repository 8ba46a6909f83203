"""What tensors without memory compute as on a GPU, and equal shares of what depends on their values.

The tensors are a CPU's, since this build of PyTorch has no autograd for others. So three things are set as on a GPU: the head
computes all of the vocabulary at once, its products give float32 without a cast of the weight, and attention is a causal
flash kernel, which saves what FlexAttention saves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock, patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import _sharding_prop as propagation
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from trainer.modeling import forward as trainer_forward
from trainer.modeling import logprobs
from trainer.modeling.context_parallel import OVER_SLICES, attend
from trainer.modeling.expert_parallel import SpreadExperts
from trainer.process.peers import Peers

CAUSAL = "causal_kernel"


@contextmanager
def as_on_a_gpu(received: float) -> Iterator[None]:
    """See above. What depends on values: a slice has as many log-probs as fit; this rank's experts get `received` times an equal
    share of the tokens."""

    def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        return a.new_empty(a.shape[0], b.shape[1], dtype=dtype)

    def own_part(num_tokens: int, predictor_U: Tensor, context: Peers) -> tuple[slice, Tensor]:
        length = num_tokens // context.size
        start = context.rank * length
        return slice(start, start + length), predictor_U.new_zeros(min(length, len(predictor_U)))

    def blocks(weight_VD: Tensor, *, truncated: bool, backward: bool = False) -> list[slice]:
        count = len(weight_VD)
        return logprobs._chunks(count, logprobs.BACKWARD_BLOCK if backward else count)

    def isend(*_: Any, **__: Any) -> Any:
        return Mock(is_completed=lambda: True)  # the group "fake" would never say so, and every message would stay

    def counts(spread: Any, experts_P: Tensor) -> tuple[Tensor, list[int], list[int]]:
        size = spread.place.size
        equal = len(experts_P) // size
        return experts_P.new_zeros(size, spread.module.num_experts), [equal] * size, [round(received * equal)] * size

    with (
        patch.object(logprobs, "_product", product),
        patch.object(logprobs, "_blocks", blocks),
        patch.object(trainer_forward, "own_part", own_part),
        patch.object(dist, "isend", isend),
        patch.object(SpreadExperts, "counts", counts),
        patch.object(propagation, "detect_fake_mode", lambda: None),  # of its own: what it derives is not allocated
    ):
        yield


def _causal(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: Any) -> tuple[Tensor, None]:
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(CAUSAL, _causal)
AttentionInterface.register(OVER_SLICES + CAUSAL, lambda *args, **options: attend(CAUSAL, *args, **options))
for _name in (CAUSAL, OVER_SLICES + CAUSAL):
    AttentionMaskInterface.register(_name, lambda *_, **__: None)
