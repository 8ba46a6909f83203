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

from sampler.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning
from sampler.parsers.scan import scan
from sampler.parsers.typed_arguments import argument_types, typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f"{OPEN}<function=NAME><parameter=KEY>VALUE</parameter></function>{CLOSE}"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_END_PARAMETER = "</parameter>"
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
_BLANKS = re.compile(r"\s*")
_REST = re.compile(r"\s*</function>\s*")


def parse_qwen3_coder(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text)
    reply = ReplyBuilder(reasoning, FORM)
    return scan(rest, reply, lambda at: _next_call(rest, at), lambda start: _read_call(rest, start, tools, reply))


def _next_call(text: str, at: int) -> int:
    """Models sometimes omit the outer tag; the inner one is enough."""
    starts = [start for tag in (OPEN, _FUNCTION) if (start := text.find(tag, at)) >= 0]
    return min(starts, default=-1)


def _read_call(text: str, start: int, tools: ToolSchemas, reply: ReplyBuilder) -> int:
    at = _after(text, start, OPEN)
    if not text.startswith(_FUNCTION, at):
        reply.error(f"does not begin with {_FUNCTION}NAME>")
        return _resume(text, max(at, start + 1))
    name_end = text.find(">", at)
    if name_end < 0:
        reply.error("is not closed")
        return len(text)
    name = text[at + len(_FUNCTION) : name_end].strip()
    types = argument_types(tools, name)
    arguments = {}
    at = name_end + 1
    while match := _PARAMETER.match(text, at):
        end = text.find(_END_PARAMETER, match.end())
        if end < 0 or CLOSE in text[match.end() : end]:
            reply.error(f"has a parameter {match.group(1).strip()!r} that is not closed")
            return _resume(text, match.end())
        key = match.group(1).strip()
        arguments[key] = typed(_unwrapped(text[match.end() : end]), types.get(key))
        at = end + len(_END_PARAMETER)
    closed = _REST.match(text, at)
    if closed is None:
        reply.error(f"is not closed by {_END_FUNCTION}")
        return _resume(text, at)
    reply.call(name, arguments)
    return closed.end() + (len(CLOSE) if text.startswith(CLOSE, closed.end()) else 0)


def _after(text: str, start: int, tag: str) -> int:
    if not text.startswith(tag, start):
        return start
    match = _BLANKS.match(text, start + len(tag))
    assert match is not None, "blanks may be missing"
    return match.end()


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
