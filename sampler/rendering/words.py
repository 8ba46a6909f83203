"""What an assistant's message says and calls, as a digest that is equal for copies of it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def words_of(message: Mapping[str, Any]) -> str:
    """Text, reasoning and calls. Blanks around a text and ids of calls do not count; arguments may be JSON."""
    texts = [_text(message.get(name)) for name in ("content", "reasoning_content")]
    said = [*texts, [_call(call) for call in message.get("tool_calls") or ()]]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


def reply_words(message: Mapping[str, Any], text: str, end_of_reasoning: str) -> frozenset[str]:
    """Of the forms in which samplers keep a reply: the message, its `text` as it was sampled, that without the reasoning,
    and the message's text alone."""
    texts = (text, text.rpartition(end_of_reasoning)[2], message.get("content"))
    return frozenset(map(words_of, (message, *({"content": text} for text in texts))))


def _text(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value or ""


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return [function.get("name"), _object(function.get("arguments"))] if isinstance(function, Mapping) else call


def _object(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
