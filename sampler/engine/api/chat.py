"""/v1/chat/completions: converts an OpenAI chat request to sequences as in /generate, and their results to a chat completion.

The prompt applies the model's own chat template to the messages; control tokens in a message are plain text. Features of SGLang
that this engine lacks (streams, tools, log-probs, grammars, images) are a 400 with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sampler.core.rendering.template import ChatTemplate, Message
from sampler.engine.api.answers import generation_json
from sampler.engine.api.errors import ApiError, bad_field, bad_value, field
from sampler.engine.api.generation import Decode, Limits, ServedSequence
from sampler.engine.api.protocol import parse_generate
from shared.errors import ConfigError
from shared.names import ROLES

_REFUSED = ("stream", "logprobs", "top_logprobs", "tools", "functions", "logit_bias", "regex", "ebnf", "min_tokens")
# OpenAI's names of sampling parameters that differ in /generate; the others have equal names.
_RENAMED = {"max_tokens": "max_new_tokens", "max_completion_tokens": "max_new_tokens", "seed": "sampling_seed"}
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "n", "stop", "stop_token_ids", "ignore_eos",
             "skip_special_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty")  # fmt: skip


def parse_chat(body: dict[str, Any], template: ChatTemplate | None, limits: Limits) -> list[ServedSequence]:
    """One sequence per requested choice. Raises ApiError in the shape of the OpenAI routes."""
    try:
        return _parse(body, template, limits)
    except ApiError as error:
        raise _as_openai(error) from error


def _parse(body: dict[str, Any], template: ChatTemplate | None, limits: Limits) -> list[ServedSequence]:
    messages = _messages(body)
    for name in _REFUSED:
        if body.get(name):
            raise bad_value(f"{name} is not supported by {limits.name}'s chat route; use SGLang for it.")
    if field(body, "response_format", dict, {}).get("type", "text") != "text":
        raise bad_value(f"response_format is not supported by {limits.name}; use SGLang for it.")
    if template is None:
        raise bad_value("The served model has no chat template; use /generate.")
    variables = field(body, "chat_template_kwargs", dict, {})
    try:
        ids = replace(template, variables={**template.variables, **variables}).render_ids(messages, None, True)
    except ConfigError as error:
        raise bad_value(f"The chat template does not take these messages: {error}") from error
    sampling: dict[str, Any] = {"max_new_tokens": None}
    sampling |= {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    sampling |= {name: body[key] for key, name in _RENAMED.items() if body.get(key) is not None}
    return parse_generate({"input_ids": ids, "sampling_params": sampling, "rid": body.get("rid")}, limits)[0]


def _messages(body: dict[str, Any]) -> list[Message]:
    entries = field(body, "messages", list)
    if not entries:
        raise bad_value("Messages cannot be empty.")
    for at, message in enumerate(entries):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise bad_field(f"{{'type': 'value_error', 'loc': ('body', 'messages', {at}, 'role'), 'msg': \"Value error, "
                            f"'role' must be one of {', '.join(map(repr, ROLES))}\", 'input': {role!r}}}")  # fmt: skip
    return [{**message, "content": _content(message.get("content"), at)} for at, message in enumerate(entries)]


def _content(content: object, at: int) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if not isinstance(content, list) or len(texts) < len(content) or not all(isinstance(text, str) for text in texts):
        raise bad_value(f"messages[{at}].content: expected a text or parts of type text; this route takes no other.")
    return "".join(map(str, texts))


def _as_openai(error: ApiError) -> ApiError:
    if "object" in error.body:
        return error
    inner = error.body["error"]
    message = inner["message"] if isinstance(inner, dict) else inner
    body = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": error.status}
    return ApiError(body, error.status)


def chat_json(body: dict[str, Any], generations: Sequence[ServedSequence], decode: Decode) -> dict[str, Any]:
    """The chat completion of finished sequences."""
    first = generations[0]
    completion_tokens = sum(len(g.output) for g in generations)
    return {
        "id": first.rid,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model") or "default",
        "choices": [_choice(index, g, decode) for index, g in enumerate(generations)],
        "usage": {
            "prompt_tokens": len(first.prompt),
            "total_tokens": len(first.prompt) + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
        "metadata": {"weight_version": first.weight_version, "weight_versions": first.weight_versions()},
    }


def _choice(index: int, g: ServedSequence, decode: Decode) -> dict[str, Any]:
    finish = g.finish or {}
    return {
        "index": index,
        "message": {"role": "assistant", "content": generation_json(g, decode)["text"], "reasoning_content": None},
        "logprobs": None,
        "finish_reason": finish["type"],
        "matched_stop": finish.get("matched"),
    }
