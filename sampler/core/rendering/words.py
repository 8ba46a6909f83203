"""The content of an assistant message (text, reasoning, calls) as a number that is equal for copies."""

import json
from collections.abc import Mapping
from typing import Any

Words = int  # a hash, valid within one process; Python caches the hash of a text, so a repeated history is cheap


def words_of(message: Mapping[str, Any]) -> Words:
    """Hash of text, reasoning and calls. Surrounding blanks and call ids are ignored; arguments may be JSON."""
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return hash((_text(message.get("content")), _text(message.get("reasoning_content")), _json(calls) if calls else ""))


def reply_words(message: Mapping[str, Any], text: str, end_of_reasoning: str) -> frozenset[Words]:
    """The forms in which samplers keep a reply: the message, its `text` as sampled, that text without the reasoning, and the
    message's text alone."""
    texts = (text, text.rpartition(end_of_reasoning)[2], message.get("content"))
    return frozenset(map(words_of, (message, *({"content": text} for text in texts))))


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else _json(value) if value else ""


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    return [function.get("name"), _object(function.get("arguments"))] if isinstance(function, Mapping) else call


def _object(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments
