"""Walks through a reply from one tool call to the next, as most families need."""

import re
from collections.abc import Callable

from sampler.core.parsers.reply import ParsedReply, ReplyBuilder

_BLANKS = re.compile(r"\s*")


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


def after_openings(text: str, at: int, opening: str) -> int:
    """Index behind an opening tag that stands once or several times in a row, and behind the blanks there."""
    while text.startswith(opening, at):
        blanks = _BLANKS.match(text, at + len(opening))
        assert blanks is not None, "blanks may be missing"
        at = blanks.end()
    return at
