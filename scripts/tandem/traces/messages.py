"""Messages of a turn in the form of OpenTelemetry's GenAI conventions: JSON text of bounded size.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ (gen_ai.input.messages, gen_ai.output.messages)
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.documents import DispatchedSamplingTask
from shared.episodes.images import EpisodeImages
from shared.outside_text import clipped

MAX_TEXT_CHARS = 16_000  # of one part of a message; the documents have the whole text
MOST_MESSAGES = 50  # of one attribute, the last ones
REASONS = {"stop": "stop", "length": "length", "abort": "error"}


def bounded(text: object, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Text that every receiver can store: of bounded length, without NUL (which PostgreSQL refuses)."""
    return clipped(text if isinstance(text, str) else as_json(text), max_chars).replace("\x00", "\ufffd")


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def input_messages(messages: Sequence[Mapping[str, Any]], images: EpisodeImages) -> str:
    """What is new in a request. An image is a line of text: no image of the store leaves it."""
    return as_json([_message(_with_lines(message, images)) for message in messages[-MOST_MESSAGES:]])


def _with_lines(message: Mapping[str, Any], images: EpisodeImages) -> Mapping[str, Any]:
    content = message.get("content")
    return {**message, "content": images.text(content)} if isinstance(content, list) else message


def output_messages(dispatch: DispatchedSamplingTask) -> str | None:
    """The reply; its text as it was sampled, unless the parsed message has another. None: none came."""
    response = dispatch.response
    if response is None:
        return None
    message = {"content": response.text, **response.message, "role": "assistant"}
    reason = REASONS.get(response.finish_reason, response.finish_reason)
    return as_json([{**_message(message), "finish_reason": reason}])


def text_message(role: str, text: str) -> str:
    return as_json([_message({"role": role, "content": text})])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = str(message.get("role", "user")), message.get("content")
    parts: list[dict[str, Any]] = []
    reasoning = message.get("reasoning_content")
    if reasoning:
        parts.append({"type": "reasoning", "content": bounded(reasoning)})
    if role == "tool":
        answer = {"id": message.get("tool_call_id"), "response": bounded("" if content is None else content)}
        parts.append({"type": "tool_call_response", **answer})
    elif content:
        parts.append({"type": "text", "content": bounded(content)})
    parts += [_call(call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    return {"role": role, "parts": parts}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    whole = len(as_json(arguments)) <= MAX_TEXT_CHARS
    return {
        "type": "tool_call",
        "id": call.get("id"),
        "name": bounded(function.get("name", ""), 200),
        "arguments": arguments if whole else bounded(arguments),
    }
