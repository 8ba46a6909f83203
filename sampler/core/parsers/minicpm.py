"""MiniCPM's format (3, 4, 4-MCP): lines of Python calls between two tokens, special tokens around reasoning (name `minicpm`):

<|thought_start|>
I should look it up.
<|thought_end|>
<|tool_call_start|>
```python
box_owner(box="A")
clock()
```
<|tool_call_end|>
"""

import re

from sampler.core.parsers.python_values import NotPython, PythonReader
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, split_reasoning
from sampler.core.parsers.scan import scan

THOUGHT, END_THOUGHT = "<|thought_start|>", "<|thought_end|>"
OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
FORM = f'{OPEN}\n```python\nNAME(KEY="VALUE")\n```\n{CLOSE}'
_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*(?:\n|$)|\s*```\s*|\s+")


def parse_minicpm(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text, THOUGHT, END_THOUGHT, (OPEN, CLOSE))
    if not reasoning and rest == text:
        reasoning, rest = split_reasoning(text, calls=(OPEN, CLOSE))
    reply = ReplyBuilder(reasoning, FORM)
    return scan(
        rest, reply, lambda at: rest.find(OPEN, at), lambda start: _read_section(rest, start + len(OPEN), reply)
    )


def _read_section(text: str, start: int, reply: ReplyBuilder) -> int:
    """A closing token inside a string argument does not end the section: calls are read up to a token outside of strings."""
    reader = PythonReader(text, start)
    count = 0
    try:
        while True:
            _skip(reader)
            if text.startswith(CLOSE, reader.at):
                break
            if count and reply.is_full():
                return len(text)
            reply.call(*reader.call())
            count += 1
    except NotPython as exc:
        reply.error("is not closed" if reader.at >= len(text) else f"is not valid: {exc}")
        end = text.find(CLOSE, reader.at)
        return end + len(CLOSE) if end >= 0 else len(text)
    if not count:
        reply.error("is missing between the two tokens")
    return reader.at + len(CLOSE)


def _skip(reader: PythonReader) -> None:
    while match := _FENCE.match(reader.text, reader.at):
        reader.at = match.end()
    reader.takes(";")
