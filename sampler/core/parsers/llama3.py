"""Llama 3.1's format: the reply consists of calls, or they follow <|python_tag|> (name `llama3`):

{"name": "box_owner", "parameters": {"box": "A"}}
<|python_tag|>{"name": "box_owner", "parameters": {"box": "A"}}; {"name": "clock", "parameters": {}}

Without the tag, a reply that begins with an object is a call if it has a name and arguments or parameters; else it is a JSON
answer.
"""

import re
from typing import Any

from sampler.core.parsers.json_calls import ARGUMENTS, add_named_call
from sampler.core.parsers.json_values import read_json_at
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning

TAG = "<|python_tag|>"
FORM = '{"name": "…", "parameters": {…}}'
_SEPARATOR = re.compile(rf"(?:[\s;,]|{re.escape(TAG)})*+")
_BEGINS_CALL = re.compile(r'\s*\{\s*"(?:name|id|type|function|parameters|arguments)"\s*:')
_HAS_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"\s*:')


def parse_llama3(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text)
    before, tagged, after = rest.partition(TAG)
    if not tagged and not (_BEGINS_CALL.match(rest) and _HAS_ARGUMENTS.search(rest)):
        return ParsedReply(rest.strip(), reasoning=reasoning)
    reply = ReplyBuilder(reasoning, FORM)
    if tagged:
        reply.text(before)
    _read_calls(after if tagged else rest, bool(tagged), reply)
    return reply.done()


def _read_calls(text: str, tagged: bool, reply: ReplyBuilder) -> None:
    at = _skip(text, 0)
    if at == len(text):
        reply.error("is empty")
    while at < len(text):
        if reply.is_full():
            return
        if text[at] != "{":
            if reply.number == 1:
                reply.error("is not a JSON object")
            else:
                reply.text(text[at:])
            return
        value, end, why = read_json_at(text, at)
        if why:
            reply.error(f"is not valid JSON: {why}")
            return
        if tagged or _is_call(value):
            add_named_call(value, reply)
        else:
            reply.text(text[at:end])
        at = _skip(text, end)


def _is_call(value: dict[str, Any]) -> bool:
    inner = value.get("function")
    call = inner if "name" not in value and isinstance(inner, dict) else value
    return "name" in call and any(name in call for name in ARGUMENTS)


def _skip(text: str, at: int) -> int:
    match = _SEPARATOR.match(text, at)
    assert match is not None, "separators may be missing"
    return match.end()
