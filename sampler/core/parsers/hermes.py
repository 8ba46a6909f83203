"""The Hermes format of Qwen2.5, Qwen3 and others (names `hermes`, `qwen`, `qwen25`):

I look it up.
<tool_call>
{"name": "box_owner", "arguments": {"box": "A"}}
</tool_call>
"""

from sampler.core.parsers.json_calls import add_named_call, next_call, read_closed_json
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning
from sampler.core.parsers.scan import after_openings, scan

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORM = f'{OPEN}{{"name": "…", "arguments": {{…}}}}{CLOSE}'


def parse_hermes(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text, calls=(OPEN, CLOSE))
    reply = ReplyBuilder(reasoning, FORM)
    return scan(
        rest,
        reply,
        lambda at: rest.find(OPEN, at),
        lambda start: _read_call(rest, after_openings(rest, start, OPEN), reply),
    )


def _read_call(text: str, body_at: int, reply: ReplyBuilder) -> int:
    read = read_closed_json(text, body_at, CLOSE, reply)
    if read is None:
        return next_call(text, body_at, OPEN, CLOSE)
    value, end = read
    add_named_call(value, reply)
    return end
