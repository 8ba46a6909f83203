"""Converts a parsed reply to the message that the chat template takes, and gives its calls ids."""

from dataclasses import replace
from typing import Any

from sampler.core.parsers import MAX_CALLS, ParsedReply

Message = dict[str, Any]
PROSE = ("content", "reasoning_content")


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
