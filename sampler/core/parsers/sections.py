"""Calls between tokens, several of them in a section between further tokens: the format of DeepSeek and Kimi."""

from collections.abc import Callable
from dataclasses import dataclass

from sampler.core.parsers.reply import ParsedReply, ReplyBuilder, split_reasoning


@dataclass(frozen=True, slots=True)
class SectionTokens:
    """The tokens around a section, and the token that opens a call inside."""

    begin: str
    end: str
    open_call: str


def parse_sections(
    text: str, form: str, tokens: SectionTokens, read_call: Callable[[str, int, ReplyBuilder], int]
) -> ParsedReply:
    """`read_call` adds the call whose body begins at an index to the reply, and returns where parsing resumes."""
    reasoning, rest = split_reasoning(text, calls=(tokens.begin, tokens.end))
    reply = ReplyBuilder(reasoning, form)
    at = 0
    while (start := rest.find(tokens.open_call, at)) >= 0:
        reply.text(_without(rest[at:start], tokens))
        if reply.is_full():
            return reply.done()
        at = read_call(rest, start + len(tokens.open_call), reply)
    tail = rest[at:]
    if reply.number == 1 and tokens.begin in tail:
        reply.error("is missing between the tokens of a section")
    reply.text(_without(tail, tokens))
    return reply.done()


def _without(text: str, tokens: SectionTokens) -> str:
    return text.replace(tokens.begin, "").replace(tokens.end, "")
