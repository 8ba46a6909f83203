"""An assistant's message: made of a parsed reply, known again by its content, and begun by the client.

A message of the assistant that is the last one of a request, with `"prefix": true`, is the beginning of the reply. The model
continues it:

    system, user, {"role": "assistant", "content": "The sum is", "prefix": true}      the prompt ends with "The sum is"
    reply " 7"                                                                        its message says "The sum is 7"

Prefix tokens are the prompt's: neither sampled nor trained.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sampler.core.parsers import MAX_CALLS, ParsedReply

Message = dict[str, Any]
MessageT = TypeVar("MessageT", bound=Mapping[str, Any])
Words = int  # a hash, valid within one process; Python caches the hash of a text, so a repeated history is cheap
PROSE = ("content", "reasoning_content")
PREFIX = "prefix"


def make_call_id(kind: str, number: int) -> str:
    """Nine letters and digits, as the strictest templates require."""
    return f"{kind}{number % 10**8:08d}"


def with_call_ids(parsed: ParsedReply, turn: int) -> ParsedReply:
    """Give every call an id: the model's own, or one that is unique in the episode."""
    calls = [
        call if call.id else replace(call, id=make_call_id("c", turn * MAX_CALLS + index))
        for index, call in enumerate(parsed.tool_calls)
    ]
    return replace(parsed, tool_calls=calls)


def message_of(parsed: ParsedReply) -> Message:
    message: Message = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def beyond_text(text: str, message: Message) -> Message:
    """The message without the texts that occur verbatim in `text`, which is stored already."""
    return {name: value for name, value in message.items() if name not in PROSE or value not in text}


# ---------------------------------------------------------------------- known again: text, reasoning and calls as a number


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


# ---------------------------------------------------------------------- begun by the client


def is_prefix(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" and message.get(PREFIX) is True


def prefix_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Empty if the messages leave the whole reply to the model."""
    return str(messages[-1].get("content") or "") if messages and is_prefix(messages[-1]) else ""


def without_prefix(messages: Sequence[MessageT]) -> Sequence[MessageT]:
    return messages[:-1] if messages and is_prefix(messages[-1]) else messages
