"""Walks through a reply from one tool call to the next, as most families need."""

from collections.abc import Callable

from sampler.parsers.reply import ParsedReply, ReplyBuilder


def scan(text: str, reply: ReplyBuilder, find: Callable[[int], int], read: Callable[[int], int]) -> ParsedReply:
    """`find` returns the start of the next call from an index on, or -1; `read` adds the call that begins there to `reply` and
    returns where parsing resumes. The text between calls is the reply's text."""
    at = 0
    while (start := find(at)) >= 0:
        reply.text(text[at:start])
        if reply.is_full():
            return reply.done()
        at = read(start)
    reply.text(text[at:])
    return reply.done()
