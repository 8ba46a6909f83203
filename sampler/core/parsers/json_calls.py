"""Reads calls that are JSON, or have JSON between tags. Shared by the families that write arguments as JSON."""

from typing import Any

from sampler.core.parsers.json_values import read_json
from sampler.core.parsers.reply import ReplyBuilder

# A closing tag may occur inside a JSON string. A few later ones are tried too; the bound keeps the time linear.
_CLOSING_TAGS_TRIED = 4
_MAX_HEAD = 1024
ARGUMENTS = ("arguments", "parameters")
_BESIDE = ("name", "id", "type", "index", "call_id", "tool_call_id", *ARGUMENTS)


def add_named_call(value: Any, reply: ReplyBuilder, call_id: str = "") -> None:
    """Add the call `{"name": …, "arguments": {…}}`, or an error. `parameters` may stand for `arguments`, and OpenAI's
    `{"type": "function", "function": {…}}` around the call."""
    if isinstance(value, dict) and "name" not in value and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        reply.error(f"is {type(value).__name__}, not an object")
        return
    unknown = [name for name in value if name not in _BESIDE]
    written = [value[name] for name in ARGUMENTS if name in value]
    if isinstance(value.get("name"), str) and unknown:
        reply.error(f'has {unknown[0][:60]!a} beside "name"; a parameter belongs into "arguments"')
    elif len(written) > 1:
        reply.error('has both "arguments" and "parameters"')
    else:
        reply.call(value.get("name"), written[0] if written else {}, call_id)


def read_head(
    text: str, start: int, separator: str, opening: str, close: str, reply: ReplyBuilder
) -> tuple[str, int] | None:
    """The text before `separator`, which names the call, and the start of the body. None: `reply` has the error."""
    end = text.find(separator, start, start + _MAX_HEAD)
    if end < 0 or next_call(text, start, opening, close) <= end:
        reply.error(f"has no {separator} behind its name")
        return None
    return text[start:end].strip(), end + len(separator)


def read_closed_json(text: str, start: int, close: str, reply: ReplyBuilder) -> tuple[Any, int] | None:
    """The JSON between `start` and the tag `close`, and where parsing resumes. None: `reply` has the error."""
    end = text.find(close, start)
    if end < 0:
        reply.error("is not closed")
        return None
    problem = ""
    for _ in range(_CLOSING_TAGS_TRIED):
        value, why = read_json(text[start:end])
        if not why:
            return value, end + len(close)
        problem = problem or why
        end = text.find(close, end + len(close))
        if end < 0:
            break
    reply.error(f"is not valid JSON: {problem}")
    return None


def after_tag(text: str, start: int, close: str) -> int:
    """Index after the next closing tag; the text's end without one."""
    end = text.find(close, start)
    return end + len(close) if end >= 0 else len(text)


def next_call(text: str, at: int, opening: str, close: str) -> int:
    """Where parsing resumes after a malformed call: after its end, but not beyond the start of the next."""
    following = text.find(opening, at)
    end = after_tag(text, at, close)
    return end if following < 0 else min(end, following)
