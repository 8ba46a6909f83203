"""Kimi-K2's format; the id contains the function's name and a counter (name `kimi_k2`):

<|tool_calls_section_begin|><|tool_call_begin|>functions.box_owner:0<|tool_call_argument_begin|>{"box": "A"}<|tool_call_end|>
<|tool_calls_section_end|>
"""

import re

from sampler.core.parsers.json_calls import next_call, read_closed_json, read_head
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas
from sampler.core.parsers.sections import SectionTokens, parse_sections

SECTION, END_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
OPEN, ARGUMENTS, CLOSE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
FORM = f"{SECTION}{OPEN}functions.NAME:0{ARGUMENTS}{{…}}{CLOSE}{END_SECTION}"
_ID = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?", re.DOTALL)


def parse_kimi_k2(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    return parse_sections(text, FORM, SectionTokens(SECTION, END_SECTION, OPEN), _read_call)


def _read_call(text: str, start: int, reply: ReplyBuilder) -> int:
    head = read_head(text, start, ARGUMENTS, OPEN, CLOSE, reply)
    if head is None:
        return next_call(text, start, OPEN, CLOSE)
    call_id, body_at = head
    read = read_closed_json(text, body_at, CLOSE, reply)
    if read is None:
        return next_call(text, body_at, OPEN, CLOSE)
    value, end = read
    match = _ID.fullmatch(call_id)
    reply.call(match.group(1) if match else "", value, call_id)
    return end
