"""Mistral's formats, both after the token [TOOL_CALLS] (name `mistral`):

[TOOL_CALLS][{"name": "box_owner", "arguments": {"box": "A"}, "id": "aB3dE6gH9"}]
[TOOL_CALLS]box_owner[CALL_ID]aB3dE6gH9[ARGS]{"box": "A"}          newer; [CALL_ID]… and [ARGS] may be missing
"""

import re
from typing import Any

from sampler.core.parsers.json_calls import add_named_call
from sampler.core.parsers.json_values import read_json_at
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning
from sampler.core.parsers.scan import after_openings, scan

OPEN = "[TOOL_CALLS]"
FORM = f'{OPEN}[{{"name": "…", "arguments": {{…}}}}]'
_NAMED = re.compile(r"\s*([^\s\[\]{}\"]{1,256})(?:\[CALL_ID\]([A-Za-z0-9]{0,64}))?(?:\[ARGS\])?\s*(?=[{\"])")
# The template takes ids of exactly nine letters or digits; other ids are replaced.
_ID = re.compile(r"[A-Za-z0-9]{9}")


def parse_mistral(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text)
    reply = ReplyBuilder(reasoning, FORM)
    return scan(
        rest,
        reply,
        lambda at: rest.find(OPEN, at),
        lambda start: _read_calls(rest, after_openings(rest, start, OPEN), reply),
    )


def _read_calls(text: str, start: int, reply: ReplyBuilder) -> int:
    named = _NAMED.match(text, start)
    body_at = named.end() if named else start
    value, end, why = read_json_at(text, body_at)
    if why:
        reply.error(f"is not valid JSON: {why}")
        following = text.find(OPEN, start)
        return following if following >= 0 else len(text)
    if named:
        reply.call(named.group(1), value, _usable_id(named.group(2)))
        return end
    for entry in value if isinstance(value, list) else [value]:
        if reply.is_full():
            return len(text)
        add_named_call(entry, reply, _usable_id(entry.get("id") if isinstance(entry, dict) else None))
    if value == []:
        reply.error("is an empty list")
    return end


def _usable_id(value: Any) -> str:
    return value if isinstance(value, str) and _ID.fullmatch(value) else ""
