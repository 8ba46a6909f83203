"""Loads a model and chooses its forward: lean if the model's shape permits, else stock.

A forward is accepted only if its logits over the slot cache (prefill in two chunks, then decode) equal a plain transformers
forward; a model that neither serves correctly is refused at start, never served approximately.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from sampler.engine.local.attention import Forward, Piece, Plan, prefill_plan
from sampler.engine.local.kv import KvSlots
from sampler.engine.local.lean import LeanForward, NotLeanError
from sampler.engine.local.memory import (
    FLOAT_BYTES,
    MAX_RUNNING,
    SHAPE_KEYS,
    SMALL_MODEL,
    CacheShape,
    CacheTooSmall,
    plan_cache,
)
from sampler.engine.local.model_class import model_class
from sampler.engine.local.occupation import own_storages
from sampler.engine.local.stock import StockForward
from shared.errors import ConfigError, DataError
from shared.weights.layout import weight_files
from shared.weights.whole_model import check_loaded, check_tied

if TYPE_CHECKING:
    from shared.images.families import Family

log = logging.getLogger(__name__)

TOLERANCE = 1e-4  # of logits, relative to their largest; a wrong mask or position is off by 1e-1


class UnsupportedModelError(ValueError):
    """The model cannot be served by this engine; gives the reason."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: PreTrainedModel
    forward: Forward
    kv: KvSlots
    context_length: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The options of the command line that say how much the engine takes of the machine; None: by default."""

    max_running_requests: int = MAX_RUNNING
    kv_cache_bytes: int | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    num_threads: int | None = None


def load(model_path: Path, size: EngineSize, family: Family | None = None) -> LoadedModel:
    """Read a checkpoint in float32. `family`: of a model that reads images.

    Raises UnsupportedModelError, also for a model that is not whole.
    """
    model = _read(model_path)
    model.train(False)
    model.requires_grad_(False)
    own_storages(model)
    parameters = sum(p.numel() for p in model.parameters())
    torch.set_num_threads(size.num_threads or (1 if parameters < SMALL_MODEL else max(1, torch.get_num_threads())))
    config = model.config
    text_config = config.get_text_config()
    shape = _shape_of(text_config)
    try:
        plan = plan_cache(
            shape,
            kv_cache_bytes=size.kv_cache_bytes,
            max_running=size.max_running_requests,
            max_total_tokens=size.max_total_tokens,
            context_length=size.context_length,
            may_shorten=size.context_length is None,
        )
    except CacheTooSmall as exc:
        raise UnsupportedModelError(str(exc)) from exc
    _refuse_sliding_window(model, plan.context)
    log.info("memory: %s", plan.text(FLOAT_BYTES * parameters))
    if plan.is_shortened:
        log.warning(
            "the context is shortened to %d tokens, which fit the KV cache, of the model's %d; raise --kv-cache-bytes, or set "
            "--context-length",
            plan.context,
            plan.full_context,
        )
    kv = KvSlots(plan.slots, shape.layers, shape.kv_heads, plan.context, shape.head_dim)
    with torch.inference_mode():
        forward = choose_forward(model, kv) if family is None else vision_forward(model, kv, family)
    if isinstance(forward, StockForward) and forward.records_experts:
        kv.record_experts(text_config.num_experts_per_tok, _num_experts(text_config))
    log.info(
        "model loaded path=%s type=%s parameters=%d forward=%s threads=%d",
        model_path,
        config.model_type,
        parameters,
        type(forward).__name__,
        torch.get_num_threads(),
    )
    return LoadedModel(model, forward, kv, plan.context, text_config.vocab_size)


def _num_experts(config: PretrainedConfig) -> int:
    sizes = (getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    return max(size for size in (*sizes, 0) if isinstance(size, int))


def _read(model_path: Path) -> PreTrainedModel:
    try:
        model_and_report: Any = model_class(model_path).from_pretrained(
            model_path,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with the tensor's name
        )
        model, loading = model_and_report  # so with `output_loading_info`
        check_loaded(model_path, loading)
        check_tied(model_path, weight_files(model_path))
    except (ConfigError, DataError) as exc:
        raise UnsupportedModelError(str(exc)) from exc
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as exc:
        text = " ".join(str(exc).split())
        raise UnsupportedModelError(f"{model_path}: the model cannot be loaded: {type(exc).__name__}: {text}") from exc
    assert isinstance(model, PreTrainedModel)
    return model


def _shape_of(config: PretrainedConfig) -> CacheShape:
    """By attribute: models of other names (n_positions) have these too."""
    return CacheShape.of({name: getattr(config, name, None) for name in SHAPE_KEYS})


def vision_forward(model: PreTrainedModel, kv: KvSlots, family: Family) -> Forward:
    """Of a model that reads images: lean, or none."""
    from sampler.engine.local.vision_check import image_difference  # for vision models alone

    kind = model.config.model_type
    try:
        forward = LeanForward(model, kv.max_len)
    except NotLeanError as reason:
        raise UnsupportedModelError(
            f"{kind}: its language model has {reason}; this model needs SGLang or vLLM"
        ) from reason
    tokens = _sample_tokens(model, kv)
    expected = model(input_ids=tokens[None], use_cache=False).logits[0]
    error = max(_difference(forward, kv, tokens, expected), image_difference(model, forward, kv, family))
    if error > TOLERANCE:
        raise UnsupportedModelError(
            f"{kind}: over the slot cache its logits differ from transformers' by {error:.2g}; this model needs SGLang or vLLM"
        )
    return forward


def _sample_tokens(model: PreTrainedModel, kv: KvSlots) -> Tensor:
    vocabulary: int = model.config.get_text_config().vocab_size
    return torch.arange(min(24, kv.max_len)) * 7919 % vocabulary


def choose_forward(model: PreTrainedModel, kv: KvSlots) -> Forward:
    tokens = _sample_tokens(model, kv)
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
    pieces = []
    for start, end in ((0, third), (third, 2 * third)):
        piece = Piece(0, end - start, slot=0, past=start)
        pieces.append(forward.logits(prefill_plan(kv, [piece], tokens[start:end], list(range(end - start)))))
    for position in range(2 * third, len(tokens)):
        where = torch.tensor([position])
        index = kv.write_index(torch.zeros(1, dtype=torch.int64), where)
        pieces.append(forward.logits(Plan(kv, tokens[position : position + 1], where, index, [], longest=position + 1)))
    return float((torch.cat(pieces) - expected).abs().max() / expected.abs().max())


def _refuse_sliding_window(model: PreTrainedModel, context: int) -> None:
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or []
    limited = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if window and limited and window < context:
        raise UnsupportedModelError(
            f"{config.model_type}: attention over a window of {window} tokens is not supported; "
            f"start with --context-length {window} or less"
        )
