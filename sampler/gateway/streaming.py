"""What a client may be told of a reply while it is sampled: text that no later token can change.

    <think> R R R </think> C C C <tool_call> …        reasoning grows, then content; from the first opening of a call on,
                  ▲ held        ▲ held                nothing more is told until the reply is whole

Held back: blanks at the end (a parser strips them), the beginning of a tag, half of a character. So what was told is a prefix
of the whole reply's reasoning and content. If it is not (an engine failed and another began anew), the stream is `broken`, and
the reply is given up: the client asks again.
"""

import asyncio
import time
from collections.abc import Sequence

from sampler.core.parsers import OPENINGS, ParsedReply
from sampler.core.parsers.reply import END_THINK, THINK, split_reasoning
from sampler.core.rendering.turn import HALF, PartialTurn
from sampler.gateway.exchange import ChatRequest, ReplyHead, RetryRequest, reply_id

BROKEN = "an engine failed in the middle of the stream; ask again"


class ReplyStream:
    """`changed` is set when there is more to tell. `openings`: texts that begin what is no plain text; `stops`: that end the
    reply."""

    def __init__(self, model: str, openings: Sequence[str], stops: Sequence[str] = (), prefix: str = "") -> None:
        self._model = model
        self._openings = openings
        self._stops = stops
        self._prefix = prefix
        self._text = ""
        self.head: ReplyHead | None = None
        self.reasoning = self.content = ""
        self.broken = False
        self.changed = asyncio.Event()

    def hear(self, partial: PartialTurn) -> None:
        if self.head is None:
            self.head = ReplyHead(
                reply_id(partial.dispatch_id), self._model, int(time.time()), partial.prompt_tokens, 0
            )
        if not partial.text.startswith(self._text):
            self.broken = True
            self.changed.set()
            if partial.is_whole:
                raise RetryRequest(BROKEN)
            return
        self._text = partial.text.rstrip(HALF)
        reasoning, content = plain_parts(
            self._prefix + partial.text, self._openings, in_reasoning=partial.opens_reasoning, stops=self._stops
        )
        content = without_beginning(content, self._prefix)
        if not (reasoning.startswith(self.reasoning) and content.startswith(self.content)):
            return  # a closing tag where nothing was open: what follows is told with the whole reply
        if (reasoning, content) != (self.reasoning, self.content):
            self.reasoning, self.content = reasoning, content
            if not partial.is_whole:  # else it is told with the reply, in one piece
                self.changed.set()


def reply_stream(request: ChatRequest, parser: str) -> ReplyStream | None:
    """None if the client asked for no stream. `parser`: of the model's calls."""
    if not request.stream:
        return None
    openings = OPENINGS[parser] if request.may_call else ()
    return ReplyStream(request.model, openings, request.stop, request.prefix)


def reply_parts(text: str, parsed: ParsedReply, streamed: str) -> tuple[str, str]:
    """Reasoning and content of a whole reply, as a client is told.

    A malformed call is told as text, as the model wrote it: a client's own parser would have refused it too. So is a reply whose
    content does not begin with what was `streamed`: from there on.
    """
    reasoning, content = parsed.reasoning, parsed.content
    if parsed.errors and not parsed.tool_calls:
        content = split_reasoning(text)[1].strip() if reasoning else text.strip()
    if content.startswith(streamed):
        return reasoning, content
    return "", text[text.find(streamed) :].strip()


def without_beginning(content: str, prefix: str) -> str:
    """What the model wrote of a content that begins with the client's `prefix`."""
    begun = prefix.lstrip()
    return content[len(begun) :] if content.startswith(begun) else "" if begun.startswith(content) else content


def first_stop(text: str, stops: Sequence[str]) -> tuple[str | None, str]:
    """The stop that comes first in a text, and the text before it. None, and the text: there is none."""
    at, stop = min(((at, one) for one in stops if (at := text.find(one)) >= 0), default=(len(text), None))
    return stop, text[:at]


def plain_parts(
    text: str, openings: Sequence[str], *, in_reasoning: bool = False, stops: Sequence[str] = ()
) -> tuple[str, str]:
    """Reasoning and content of a reply that may go on. `in_reasoning`: the prompt opened the reasoning."""
    before, closed, after = text.partition(END_THINK)
    is_open = in_reasoning or before.lstrip().startswith(THINK)
    if closed and (is_open or not any(opening in before for opening in openings)):  # else it may be a call's
        return before.replace(THINK, "", 1).strip(), _plain(after.lstrip(), (*openings, *stops, THINK))
    begun = text.lstrip()
    if begun.startswith(THINK) or in_reasoning:
        return _plain(begun.replace(THINK, "", 1).lstrip(), (END_THINK, *stops)), ""
    if THINK.startswith(begun):
        return "", ""
    return "", _plain(begun, (*openings, *stops, THINK, END_THINK))


def _plain(text: str, openings: Sequence[str]) -> str:
    """The beginning that no later text can change."""
    end = min((at for opening in openings if (at := text.find(opening)) >= 0), default=len(text))
    if end == len(text):
        end -= max((_overlap(text, opening) for opening in openings), default=0)
    return text[:end].rstrip(HALF).rstrip()


def _overlap(text: str, opening: str) -> int:
    """How many characters at the end of `text` may be the beginning of `opening`."""
    return next((n for n in range(min(len(opening) - 1, len(text)), 0, -1) if opening.startswith(text[-n:])), 0)
