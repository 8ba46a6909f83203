"""The walk through a reply from one tool call to the next, which most families share."""

from collections.abc import Callable

from sampler.parsers.reply import ParsedReply, ReplyBuilder


def scan(text: str, reply: ReplyBuilder, find: Callable[[int], int], read: Callable[[int], int]) -> ParsedReply:
    """`find` gives the start of the next call from an index on, or -1; `read` takes the call that begins there into `reply` and
    returns where the text goes on. What stands between calls is the reply's text."""
    at = 0
    while (start := find(at)) >= 0:
        reply.text(text[at:start])
        if reply.is_full():
            return reply.done()
        at = read(start)
    reply.text(text[at:])
    return reply.done()
