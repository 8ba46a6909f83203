"""Qwen3-Coder's format; arguments are bare text, typed by the tool's schema (name `qwen3_coder`):

<tool_call>
<function=box_owner>
<parameter=box>
A
</parameter>
</function>
</tool_call>
"""

import re
from collections.abc import Mapping
from typing import Any

from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning
from sampler.core.parsers.scan import after_openings, scan
from sampler.core.parsers.typed_arguments import ToolTypes, typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f"{OPEN}<function=NAME><parameter=KEY>VALUE</parameter></function>{CLOSE}"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_END_PARAMETER = "</parameter>"
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
_TAG = re.compile(r"<parameter=[^<>\n]*>")
_REST = re.compile(r"\s*</function>\s*")


def parse_qwen3_coder(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text, calls=(_FUNCTION, _END_FUNCTION))
    reply, types = ReplyBuilder(reasoning, FORM), ToolTypes(tools)
    return scan(rest, reply, lambda at: _next_call(rest, at), lambda start: _read_call(rest, start, types, reply))


def _next_call(text: str, at: int) -> int:
    """Models sometimes omit the outer tag; the inner one is enough."""
    starts = [start for tag in (OPEN, _FUNCTION) if (start := text.find(tag, at)) >= 0]
    return min(starts, default=-1)


def _read_call(text: str, start: int, tools: ToolTypes, reply: ReplyBuilder) -> int:
    at = after_openings(text, start, OPEN)
    if not text.startswith(_FUNCTION, at):
        reply.error(f"does not begin with {_FUNCTION}NAME>")
        return _resume(text, max(at, start + 1))
    name_end = text.find(">", at)
    if name_end < 0:
        reply.error("is not closed")
        return len(text)
    name = text[at + len(_FUNCTION) : name_end].strip()
    types = tools.of(name)
    arguments: dict[str, Any] = {}
    at = name_end + 1
    while match := _PARAMETER.match(text, at):
        key, end = match.group(1).strip(), text.find(_END_PARAMETER, match.end())
        problem = _problem_of(key, text[match.end() : end] if end >= 0 else CLOSE, arguments)
        if problem:
            reply.error(problem)
            return _resume(text, match.end())
        arguments[key] = typed(_unwrapped(text[match.end() : end]), types.of(key))
        at = end + len(_END_PARAMETER)
    closed = _REST.match(text, at)
    if closed is None:
        reply.error(f"is not closed by {_END_FUNCTION}")
        return _resume(text, at)
    reply.call(name, arguments)
    return closed.end() + (len(CLOSE) if text.startswith(CLOSE, closed.end()) else 0)


def _problem_of(key: str, value: str, before: Mapping[str, Any]) -> str:
    """Why the parameter cannot be one; empty if it can. Its end is missing if its value has a tag of the format in it."""
    if CLOSE in value:
        return f"has a parameter {key[:60]!r} that is not closed by {_END_PARAMETER}"
    inner = _TAG.search(value)
    if inner:
        return f"has a parameter {key[:60]!r} that is not closed by {_END_PARAMETER} before {inner.group()[:60]}"
    return f"has the parameter {key[:60]!r} twice" if key in before else "" if key else "has a parameter without a name"


def _resume(text: str, at: int) -> int:
    """Index after the end of the malformed call, but not beyond the start of the next."""
    end = text.find(CLOSE, at)
    following = _next_call(text, at)
    if end >= 0 and (following < 0 or end < following):
        return end + len(CLOSE)
    return following if following >= 0 else len(text)


def _unwrapped(value: str) -> str:
    """The value without the one line break that the format puts around it."""
    return value.removeprefix("\n").removesuffix("\n")
