"""A list of Python calls, the format of Llama 3.2 and 4, ToolACE and others (name `pythonic`):

[box_owner(box="A"), clock()]

A list that is no list of calls, and begins with a name that no tool has, is text: `[sqrt(x) for x in xs]`.
"""

import re

from sampler.core.parsers.python_values import NotPython, PythonReader
from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, ToolSchemas, schema_of, split_reasoning

FORM = '[NAME(KEY="VALUE", …), …]'
_TAGS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
_TAG = re.compile("|".join(map(re.escape, _TAGS)))
_BEGINS = re.compile(rf"(?:^|{_TAG.pattern})[ \t]*\[\s*(?=([^\W\d][\w.\-]*)\s*\()", re.MULTILINE)


def parse_pythonic(text: str, tools: ToolSchemas = ()) -> ParsedReply:
    reasoning, rest = split_reasoning(text)
    reply = ReplyBuilder(reasoning, FORM)
    at = 0
    while match := _BEGINS.search(rest, at):
        reply.text(_TAG.sub("", rest[at : match.start()]))
        if reply.is_full():
            return reply.done()
        at = _read_list(rest, match, tools, reply)
    reply.text(_TAG.sub("", rest[at:]))
    return reply.done()


def _read_list(text: str, begun: re.Match[str], tools: ToolSchemas, reply: ReplyBuilder) -> int:
    reader, before = PythonReader(text, begun.end()), reply.number
    try:
        while not reader.takes("]"):
            if reply.is_full():
                return len(text)
            reply.call(*reader.call())
            if not reader.takes(","):
                reader.expect("]")
                break
    except NotPython as exc:
        if reply.number == before and schema_of(tools, begun.group(1)) is None:
            reply.text(_TAG.sub("", begun.group()))
            return begun.end()
        reply.error(f"is not valid: {exc}")
        return _resume(text, begun.end(), reader.at)
    return reader.at


def _resume(text: str, start: int, at: int) -> int:
    """Where the next list may begin after one that is malformed at `at`: that line, if it begins one, else its end."""
    line = text.rfind("\n", start, at) + 1
    if line and _BEGINS.match(text, line):
        return line
    line_end = text.find("\n", at)
    return line_end if line_end >= 0 else len(text)
