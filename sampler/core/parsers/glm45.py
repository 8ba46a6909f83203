"""GLM-4.5's format; string values are bare text, others JSON, so the tool's schema decides (name `glm45`):

<tool_call>box_owner
<arg_key>box</arg_key>
<arg_value>A</arg_value>
</tool_call>
"""

import re
from typing import Any

from sampler.core.parsers.json_calls import next_call
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning
from sampler.core.parsers.scan import after_openings, scan
from sampler.core.parsers.typed_arguments import ToolTypes, typed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f"{OPEN}NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n{CLOSE}"
_KEY, _END_KEY, _VALUE, _END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME = re.compile(r"\s*([^\s<>]*)\s*")
_BLANKS = re.compile(r"\s*")


def parse_glm45(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text, calls=(OPEN, CLOSE))
    reply, types = ReplyBuilder(reasoning, FORM), ToolTypes(tools)

    def read(start: int) -> int:
        end = _read_call(rest, start, types, reply)
        return next_call(rest, after_openings(rest, start, OPEN), OPEN, CLOSE) if end is None else end

    return scan(rest, reply, lambda at: rest.find(OPEN, at), read)


def _read_call(text: str, start: int, tools: ToolTypes, reply: ReplyBuilder) -> int | None:
    """Index where parsing resumes; None after an error."""
    match = _NAME.match(text, after_openings(text, start, OPEN))
    assert match is not None, "blanks and a name may be empty"
    name, at = match.group(1), match.end()
    types = tools.of(name)
    arguments: dict[str, Any] = {}
    while text.startswith(_KEY, at):
        key, at = _tagged(text, at, _KEY, _END_KEY)
        value, at = _tagged(text, at, _VALUE, _END_VALUE) if key is not None else (None, at)
        if key is None or value is None:
            reply.error("has a key or a value that is not closed")
            return None
        key = key.strip()
        if not key or key in arguments:
            reply.error(f"has the key {key[:60]!a} twice" if key else "has an empty key")
            return None
        arguments[key] = typed(value, types.of(key))
    if not text.startswith(CLOSE, at):
        reply.error("is not closed" if at >= len(text) else "has text where a key or its end should be")
        return None
    reply.call(name, arguments)
    return at + len(CLOSE)


def _tagged(text: str, at: int, opening: str, closing: str) -> tuple[str | None, int]:
    """The text between two tags, and where the next tag may begin."""
    if not text.startswith(opening, at):
        return None, at
    end = text.find(closing, at)
    if end < 0 or any(tag in text[at + len(opening) : end] for tag in (CLOSE, _KEY, _VALUE)):
        return None, at
    blanks = _BLANKS.match(text, end + len(closing))
    assert blanks is not None, "blanks may be empty"
    return text[at + len(opening) : end], blanks.end()
