"""The engine's responses: the JSON of /generate, /model_info, /server_info and /v1/loads, as SGLang writes it.

SGLang's fields without a meaning here are omitted, except those that its clients read.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sampler.engine.api.generation import Decode, ServedSequence


@dataclass(slots=True)
class ServedModel:
    """The model's properties in the routes; `model_path` follows weight updates, the tokenizer stays."""

    model_path: str
    tokenizer_path: str
    model_type: str
    architectures: list[str]
    context_length: int
    max_running_requests: int
    max_total_tokens: int
    started_at: float
    version: str  # of the engine
    dtype: str = "float32"
    device: str = "cpu"
    adapters: int = 0  # how many of them one batch may mix; 0: it serves the base alone
    ranks: int = 1  # over which one copy of the weights is spread
    reads_images: bool = False


def generation_json(g: ServedSequence, decode: Decode, count: int | None = None) -> dict[str, Any]:
    """A finished sequence; for an event of a stream before the last, its first `count` tokens."""
    done = count is None
    output, log_probs = g.output[:count], g.logprobs[:count]
    meta: dict[str, Any] = {
        "id": g.rid,
        "finish_reason": g.finish if done else None,
        "prompt_tokens": len(g.read_ids or g.prompt),
        "weight_version": g.weight_version or g.runs[-1][0],
        "num_retractions": g.retractions,
    }
    if g.return_logprob:
        meta["input_token_logprobs"] = _of_prompt(g)
        meta["output_token_logprobs"] = [[lp, token, None] for lp, token in zip(log_probs, output, strict=True)]
        meta["output_token_logprobs_length"] = len(output)
        if g.params.filtered:  # SGLang's would be those before it: what reads them has to know
            meta["truncated_logprobs"] = True
    meta |= {"reasoning_tokens": 0, "completion_tokens": len(output), "cached_tokens": g.cached_tokens or 0}
    if done:
        meta["weight_versions"] = g.weight_versions()
    if done and g.experts_start is not None:
        meta["routed_experts"] = base64.b64encode(b"".join(g.experts)).decode()
    meta["cached_tokens_details"] = {"device": g.cached_tokens, "host": 0} if g.cached_tokens else None
    meta["dp_rank"] = None
    if done:
        meta["e2e_latency"] = g.finished_at - g.received_at
    meta["response_sent_to_client_ts"] = time.time()
    answer = {
        "text": _text(g, output, decode) if done else decode(output, g.params.skip_special_tokens),
        "output_ids": output,
        "meta_info": meta,
    }
    return answer | {"prompt_token_ids": g.read_ids or g.prompt} if g.return_prompt else answer


def _of_prompt(g: ServedSequence) -> list[list[Any]]:
    """From `logprob_start` on; the first has none, as in SGLang."""
    if g.logprob_start is None:
        return []
    logprobs = [None, *g.prompt_logprobs]
    return [[lp, token, None] for lp, token in zip(logprobs, g.prompt[g.logprob_start :], strict=False)]


def _text(g: ServedSequence, output: list[int], decode: Decode) -> str:
    """The decoded output, without the matched stop."""
    matched = (g.finish or {}).get("matched")
    if isinstance(matched, int):
        output = output[:-1]
    text = decode(output, g.params.skip_special_tokens)
    if isinstance(matched, str):
        text = text.partition(matched)[0]
    return text


def model_info(model: ServedModel, weight_version: str) -> dict[str, Any]:
    return {
        "model_path": model.model_path,
        "served_model_name": model.model_path,
        "tokenizer_path": model.tokenizer_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": weight_version,
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": model.reads_images,
        "has_audio_understanding": False,
        "model_type": model.model_type,
        "architectures": model.architectures,
    }


def server_info(model: ServedModel, weight_version: str, load: dict[str, int]) -> dict[str, Any]:
    state = {
        "effective_max_running_requests_per_dp": model.max_running_requests,
        "num_running_reqs": load["running"],
        "num_waiting_reqs": load["waiting"],
        "memory_usage": {"token_capacity": model.max_total_tokens},
    }
    return {
        "model_path": model.model_path,
        "tokenizer_path": model.tokenizer_path,
        "served_model_name": model.model_path,
        "context_length": model.context_length,
        "dtype": model.dtype,
        "device": model.device,
        "weight_version": weight_version,
        "max_running_requests": model.max_running_requests,
        "max_total_tokens": model.max_total_tokens,
        "max_total_num_tokens": model.max_total_tokens,
        "max_req_input_len": model.context_length - 1,
        "tp_size": model.ranks,
        "dp_size": 1,
        "status": "ready",
        "internal_states": [state],
        "enable_lora": model.adapters > 0,
        "max_loras_per_batch": model.adapters,
        "version": model.version,
    }


def loads(model: ServedModel, load: dict[str, int], throughput: float, *, paused: bool) -> dict[str, Any]:
    one = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": load["running"],
        "num_waiting_reqs": load["waiting"],
        "num_used_tokens": load["tokens"],
        "num_total_tokens": load["tokens"],
        "max_total_num_tokens": model.max_total_tokens,
        "max_running_requests": model.max_running_requests,
        "token_usage": round(load["tokens"] / model.max_total_tokens, 4),
        "gen_throughput": round(throughput, 1),
        "utilization": round(load["running"] / model.max_running_requests, 4),
        "queues": {"waiting": load["waiting"], "paused": load["running"] + load["waiting"] if paused else 0},
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": model.version,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [one],
    }


def metrics(model: ServedModel, load: dict[str, int], throughput: float) -> str:
    """The figures of SGLang's `/metrics` (`--enable-metrics`) that a dashboard of engines shows, under its names."""
    gauges = {
        "num_running_reqs": load["running"],
        "num_queue_reqs": load["waiting"],
        "num_used_tokens": load["tokens"],
        "token_usage": load["tokens"] / model.max_total_tokens,
        "gen_throughput": throughput,
    }
    name = model.model_path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = [
        f'# TYPE sglang:{one} gauge\nsglang:{one}{{model_name="{name}"}} {value:g}' for one, value in gauges.items()
    ]
    return "\n".join(lines) + "\n"


def models(model: ServedModel, adapters: Mapping[str, str]) -> dict[str, Any]:
    card = {
        "id": model.model_path,
        "object": "model",
        "created": int(model.started_at),
        "owned_by": "sglang",
        "root": model.model_path,
        "parent": None,
        "max_model_len": model.context_length,
    }
    adapted = [card | {"id": name, "root": path, "parent": model.model_path} for name, path in adapters.items()]
    return {"object": "list", "data": [card, *adapted]}
