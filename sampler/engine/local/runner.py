"""Loads a model and chooses its forward: lean if the model's shape permits, else stock.

A forward is accepted only if its logits over the slot cache (prefill in two chunks, then decode) equal a plain transformers
forward; a model that neither serves correctly is refused at start, never served approximately.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from sampler.engine.local.attention import Piece, Plan, prefill_plan
from sampler.engine.local.kv import KvSlots
from sampler.engine.local.lean import LeanForward, NotLeanError
from sampler.engine.local.occupation import own_storages
from sampler.engine.local.stock import StockForward

log = logging.getLogger(__name__)

TOLERANCE = 1e-4  # of logits, relative to their largest; a wrong mask or position is off by 1e-1
SMALL_MODEL = 20_000_000  # below this many parameters one thread is faster than several (matrices too small to share)


class UnsupportedModelError(ValueError):
    """The model cannot be served by this engine; gives the reason."""


class Forward(Protocol):
    def logits(self, plan: Plan) -> Tensor:
        """[tokens of the plan, or its logit_rows, vocabulary] float32; writes their KV."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: PreTrainedModel
    forward: Forward
    kv: KvSlots
    context_length: int
    vocab_size: int


def load(
    model_path: Path,
    max_running: int,
    max_total_tokens: int | None,
    context_length: int | None,
    num_threads: int | None,
) -> LoadedModel:
    """Read a checkpoint in float32. Raises UnsupportedModelError, or OSError/ValueError of transformers."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        model_path, dtype=torch.float32, local_files_only=True
    )
    model.train(False)
    model.requires_grad_(False)
    own_storages(model)
    parameters = sum(p.numel() for p in model.parameters())
    torch.set_num_threads(num_threads or (1 if parameters < SMALL_MODEL else max(1, torch.get_num_threads())))
    config = model.config
    longest: int = config.max_position_embeddings
    context = min(context_length or longest, longest)
    _refuse_sliding_window(model, context)
    heads = config.num_attention_heads
    fitting = max_running if max_total_tokens is None else max_total_tokens // context
    if fitting < 1:
        raise UnsupportedModelError(
            f"--max-total-tokens {max_total_tokens} is less than one context of {context} tokens; raise it, or lower "
            "--context-length"
        )
    kv = KvSlots(
        min(max_running, fitting),
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        max_len=context,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )
    with torch.inference_mode():
        forward = choose_forward(model, kv)
    log.info(
        "model loaded path=%s type=%s parameters=%d forward=%s threads=%d kv_bytes=%d",
        model_path,
        config.model_type,
        parameters,
        type(forward).__name__,
        torch.get_num_threads(),
        kv.data.nbytes,
    )
    return LoadedModel(model, forward, kv, context, config.vocab_size)


def choose_forward(model: PreTrainedModel, kv: KvSlots) -> Forward:
    tokens = torch.arange(min(24, kv.max_len)) * 7919 % model.config.vocab_size
    expected = model(input_ids=tokens[None], use_cache=False).logits[0]
    try:
        lean = LeanForward(model, kv.max_len)
        error = _difference(lean, kv, tokens, expected)
        if error <= TOLERANCE:
            return lean
        log.warning("lean forward differs from transformers by %.2g, using the stock forward", error)
    except NotLeanError as reason:
        log.info("stock forward: the model has %s", reason)
    stock = StockForward(model)
    try:
        error = _difference(stock, kv, tokens, expected)
    except (TypeError, RuntimeError, AssertionError) as reason:
        raise UnsupportedModelError(f"{model.config.model_type}: its attention does not fit the slot cache") from reason
    if error > TOLERANCE:
        raise UnsupportedModelError(
            f"{model.config.model_type}: over the slot cache its logits differ from transformers' by {error:.2g}; "
            "this model needs SGLang"
        )
    return stock


def _difference(forward: Forward, kv: KvSlots, tokens: Tensor, expected: Tensor) -> float:
    """Largest logit error relative to the largest logit: two prefill chunks, then decode token by token, in slot 0."""
    third = len(tokens) // 3
    found = []
    for start, end in ((0, third), (third, 2 * third)):
        piece = Piece(0, end - start, slot=0, past=start)
        found.append(forward.logits(prefill_plan(kv, [piece], tokens[start:end], list(range(end - start)))))
    for position in range(2 * third, len(tokens)):
        where = torch.tensor([position])
        index = kv.write_index(torch.zeros(1, dtype=torch.int64), where)
        found.append(forward.logits(Plan(kv, tokens[position : position + 1], where, index, [], longest=position + 1)))
    return float((torch.cat(found) - expected).abs().max() / expected.abs().max())


def _refuse_sliding_window(model: PreTrainedModel, context: int) -> None:
    config = model.config
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or []
    limited = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if window and limited and window < context:
        raise UnsupportedModelError(
            f"{config.model_type}: attention over a window of {window} tokens is not supported; "
            f"start with --context-length {window} or less"
        )
