"""DeepSeek's formats, with full-width bars and low blocks as in its tokens (name `deepseekv3`; V3, R1 and V3.1):

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>box_owner
```json
{"box": "A"}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>box_owner<｜tool▁sep｜>{"box": "A"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>      V3.1
"""

from sampler.core.parsers.json_calls import next_call, read_closed_json, read_head
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas
from sampler.core.parsers.sections import SectionTokens, parse_sections

SECTION, END_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
OPEN, SEPARATOR, CLOSE = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FORM = f"{SECTION}{OPEN}NAME{SEPARATOR}{{…}}{CLOSE}{END_SECTION}"
_FENCE = "```"
_MAX_KIND = 1024


def parse_deepseekv3(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    return parse_sections(text, FORM, SectionTokens(SECTION, END_SECTION, OPEN), _read_call)


def _read_call(text: str, start: int, reply: ReplyBuilder) -> int:
    heading = read_head(text, start, SEPARATOR, OPEN, CLOSE, reply)
    if heading is None:
        return next_call(text, start, OPEN, CLOSE)
    name, body_at = heading
    close = CLOSE
    head, fenced, _ = text[body_at : body_at + _MAX_KIND].partition(_FENCE)
    if fenced and "{" not in head and CLOSE not in head:  # the older format: a kind, then name and fenced JSON
        name, body_at = head.strip(), body_at + len(head) + len(_FENCE)
        body_at += len("json") if text.startswith("json", body_at) else 0
        close = _FENCE
    read = read_closed_json(text, body_at, close, reply)
    if read is None:
        return next_call(text, body_at, OPEN, CLOSE)
    value, end = read
    reply.call(name, value)
    if close == _FENCE:
        blanks = len(text[end : end + 64]) - len(text[end : end + 64].lstrip())
        return end + blanks + len(CLOSE) if text.startswith(CLOSE, end + blanks) else end
    return end
