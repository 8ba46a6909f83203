"""Parses a /generate body into validated sequences, or a 400 (`errors`).

If SGLang would crash (a token id outside the vocabulary), or supports a feature that the engine lacks, the response is a 400 with
the reason: never silently something else.
"""

from __future__ import annotations

import uuid
from typing import Any

from sampler.engine.api.errors import ApiError, bad_field, bad_value
from sampler.engine.api.generation import Limits, SamplingParams, ServedSequence
from sampler.engine.api.images import images_of
from sampler.engine.api.sampling_params import parse_sampling

_REFUSED = ("input_embeds", "return_hidden_states", "return_sampling_mask", "session_params")


def parse_generate(body: dict[str, Any], limits: Limits) -> tuple[list[ServedSequence], bool]:
    """The sequences of a /generate body, and whether the response is a list. Raises ApiError."""
    for name in _REFUSED:
        if body.get(name):
            raise bad_value(f"{name} is not supported by {limits.name}; use SGLang for it.")
    if body.get("lora_path") and not limits.adapters:
        raise bad_value(
            f"lora_path is not supported by {limits.name} as it was started; start vLLM or SGLang with --enable-lora for it."
        )
    prompts, batched = _prompts(body, limits)
    count = len(prompts)
    sampling = body.get("sampling_params")
    raws = _per_prompt(sampling, count, "sampling_params")
    parsed = [parse_sampling(raw, limits) for raw in raws]
    flags = [bool(flag) for flag in _per_prompt(body.get("return_logprob", False), count, "return_logprob")]
    starts = _prompt_logprobs(body, prompts, flags, limits.name)
    experts_start = _experts_start(body, prompts, limits)
    rids, adapters = _rids(body.get("rid"), count), _adapters(body.get("lora_path"), count)
    images, return_prompt = images_of(body, count, limits, batched=batched), bool(body.get("return_prompt_token_ids"))
    generations = []
    rows = zip(prompts, raws, parsed, flags, starts, rids, adapters, images, strict=True)
    for prompt, raw, (params, n), flag, start, rid, adapter, shown_images in rows:
        explicit = isinstance(raw, dict) and raw.get("max_new_tokens") is not None
        limit = _limit(prompt, params, limits, explicit=explicit)
        stop_ids = frozenset() if params.ignore_eos else params.stop_token_ids | limits.eos_ids
        for copy in range(n):
            name = rid if rid and copy == 0 else uuid.uuid4().hex
            stream = bool(body.get("stream"))
            generations.append(
                limits.sequence(
                    name,
                    prompt,
                    params,
                    limit,
                    stop_ids,
                    flag,
                    stream,
                    adapter,
                    start,
                    shown_images,
                    return_prompt,
                    experts_start,
                )
            )
    answer_is_list = batched or len(generations) > 1
    if answer_is_list and body.get("stream"):
        raise bad_value(f"stream with several prompts or n > 1 is not supported by {limits.name}.")
    return generations, answer_is_list


def _prompts(body: dict[str, Any], limits: Limits) -> tuple[list[list[int]], bool]:
    """Token ids of each prompt, and whether the body contains a list of prompts. `input_ids` takes precedence over `text`."""
    ids, text = body.get("input_ids"), body.get("text")
    if ids is None and text is None:
        raise bad_value("Either text, input_ids or input_embeds should be provided.")
    if ids is None:
        texts = [t for t in (text if isinstance(text, list) else [text]) if isinstance(t, str)]
        if len(texts) != (len(text) if isinstance(text, list) else 1):
            raise bad_field("{'type': 'string_type', 'loc': ('body', 'text'), 'msg': 'Input should be a valid string'}")
        return [_checked(limits.encode(t), limits, "text") for t in texts], isinstance(text, list)
    if not isinstance(ids, list):
        raise _not_ids(ids)
    if not ids:
        raise bad_value("input_ids cannot be empty.")
    if isinstance(ids[0], list):
        return [_checked(one, limits, "input_ids") for one in ids], True
    return [_checked(ids, limits, "input_ids")], False


def _checked(ids: object, limits: Limits, name: str) -> list[int]:
    if not isinstance(ids, list):
        raise _not_ids(ids)
    if not ids:
        raise bad_value(f"{name} cannot be empty.")
    if not all(type(token) is int for token in ids):
        raise _not_ids(next(token for token in ids if type(token) is not int))
    if len(ids) >= limits.context_length:
        raise bad_value(f"The input ({len(ids)} tokens) is longer than the model's context length "
                        f"({limits.context_length} tokens).")  # fmt: skip
    if min(ids) < 0 or max(ids) >= limits.vocab_size:
        at, token = next((i, t) for i, t in enumerate(ids) if not 0 <= t < limits.vocab_size)
        raise bad_value(f"{name}[{at}] is {token}; the vocabulary of this model has ids 0 to {limits.vocab_size - 1}.")
    return ids


def _not_ids(actual: object) -> ApiError:
    kind = type(actual).__name__
    return bad_field(f"{{'type': 'value_error', 'loc': ('body', 'input_ids'), 'msg': 'Value error, elements must be "
                     f"int or list; got {kind}'}}")  # fmt: skip


def _per_prompt(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise bad_value(f"The length of {name} should be equal to the batch size: {len(value)} for {count} prompts.")
    return value


def _rids(rid: Any, count: int) -> list[str | None]:
    if rid is None:
        return [None] * count
    if isinstance(rid, str):
        return [rid] if count == 1 else [f"{rid}_{i}" for i in range(count)]
    rids: list[str | None] = _per_prompt(rid, count, "rid")
    if not all(isinstance(name, str) for name in rids):
        raise bad_field("{'type': 'string_type', 'loc': ('body', 'rid'), 'msg': 'Input should be a valid string'}")
    twice = sorted({str(name) for name in rids if rids.count(name) > 1})
    if twice:
        raise bad_value(f"Duplicate request IDs detected within the request: {twice}")
    return rids


def _adapters(lora_path: Any, count: int) -> list[str | None]:
    """For each prompt the name of its adapter; None: the base alone."""
    names: list[str | None] = _per_prompt(lora_path, count, "lora_path")
    if not all(name is None or isinstance(name, str) for name in names):
        raise bad_field(
            "{'type': 'string_type', 'loc': ('body', 'lora_path'), 'msg': 'Input should be a valid string'}"
        )
    return [name or None for name in names]


def _prompt_logprobs(body: dict[str, Any], prompts: list[list[int]], flags: list[bool], name: str) -> list[int | None]:
    """For each prompt the position from which its tokens' log-probs are wanted; None: of no token."""
    starts, per_prompt = (
        _per_prompt(body.get("logprob_start_len"), len(prompts), "logprob_start_len"),
        list[int | None](),
    )
    for prompt, flag, start in zip(prompts, flags, starts, strict=True):
        if not flag or start is None or start == -1 or start == len(prompt):
            per_prompt.append(None)
            continue
        if type(start) is not int or not 0 <= start <= len(prompt):
            raise bad_value(
                f"req.logprob_start_len={start} is higher than the number of input tokens "
                f"len(req.origin_input_ids)={len(prompt)}. Please use a smaller logprob_start_len."
            )
        if body.get("stream"):
            raise bad_value(f"stream with log-probs of prompt tokens is not supported by {name}.")
        per_prompt.append(start)
    if any(_per_prompt(body.get("top_logprobs_num"), len(prompts), "top_logprobs_num")) or body.get(
        "token_ids_logprob"
    ):
        raise bad_value(f"top_logprobs_num and token_ids_logprob are not supported by {name}.")
    return per_prompt


def _experts_start(body: dict[str, Any], prompts: list[list[int]], limits: Limits) -> int | None:
    """The position from which the tokens' experts are wanted; None: of no token."""
    if not body.get("return_routed_experts"):
        return None
    if not limits.experts:
        raise bad_value(
            f"return_routed_experts is not supported by {limits.name} for this model: it has no experts whose choice is recorded."
        )
    start, most = body.get("routed_experts_start_len", 0), min(map(len, prompts))
    if type(start) is not int or not 0 <= start <= most:
        raise bad_value(f"routed_experts_start_len is {start!r}; expected 0 to {most}, the number of input tokens.")
    return start


def _limit(prompt: list[int], params: SamplingParams, limits: Limits, *, explicit: bool) -> int:
    """Maximum output tokens. SGLang refuses an explicit max_new_tokens that exceeds the context, clamps the default, and always
    stops two tokens before the context ends."""
    room = max(0, limits.context_length - 2 - len(prompt))
    requested = params.max_new_tokens
    if requested is None:
        return room
    total = len(prompt) + requested
    if explicit and total > limits.context_length:
        raise _too_many(total, len(prompt), requested, limits)
    return min(requested, room)


def fit_read_prompt(g: ServedSequence, limits: Limits) -> None:
    """After the images of `g` have become tokens of its prompt. Raises ApiError for one that is too long now."""
    _checked(g.prompt, limits, "input_ids")
    g.limit = min(g.limit, max(0, limits.context_length - 2 - len(g.prompt)))


def _too_many(total: int, prompt: int, new_tokens: int, limits: Limits) -> ApiError:
    return bad_value(
        f"Requested token count exceeds the model's maximum context length of {limits.context_length} tokens. You "
        f"requested a total of {total} tokens: {prompt} tokens from the input messages and {new_tokens} tokens for the "
        "completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
    )
