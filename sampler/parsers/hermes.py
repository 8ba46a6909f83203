"""Hermes form, as Qwen2.5, Qwen3 and others write it (names `hermes`, `qwen`, `qwen25`):

I look it up.
<tool_call>
{"name": "box_owner", "arguments": {"box": "A"}}
</tool_call>
"""

from sampler.parsers.json_calls import after_tag, read_closed_json
from sampler.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f'{OPEN}{{"name": "…", "arguments": {{…}}}}{CLOSE}'


def parse_hermes(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text)
    reply = ReplyBuilder(reasoning, FORM)
    at = 0
    while (start := rest.find(OPEN, at)) >= 0:
        reply.text(rest[at:start])
        if reply.is_full():
            return reply.done()
        body_at = start + len(OPEN)
        read = read_closed_json(rest, body_at, CLOSE, reply)
        if read is None:
            at = after_tag(rest, body_at, CLOSE)
            continue
        value, at = read
        if isinstance(value, dict):
            reply.call(value.get("name"), value.get("arguments", {}))
        else:
            reply.error(f"is {type(value).__name__}, not an object")
    reply.text(rest[at:])
    return reply.done()
