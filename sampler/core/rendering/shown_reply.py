"""Where a reply is in a rendering, in which sentinels stand for it."""

from dataclasses import dataclass

from sampler.core.rendering.marks import MARK_END
from sampler.core.rendering.sampled_reply import SampledReply
from sampler.core.rendering.template import ChatTemplate
from sampler.core.rendering.turn_format import TurnFormat, common_length, turn_format


@dataclass(frozen=True, slots=True)
class ShownReply:
    """The position of a reply in a rendering: from `start` to its end-of-turn token at `end` (-1: none). `whole` is False
    without its reasoning."""

    start: int
    end: int
    whole: bool


def place_of(reply: SampledReply, text: str, cursor: int, template: ChatTemplate) -> ShownReply | None:
    """The position of `reply` in a rendering, at or after `cursor`. None: not shown."""
    turn = turn_format(template)
    places = {name: at for name, s in reply.sentinels.items() if (at := text.find(s, cursor)) >= 0}
    if not places:
        return None
    first = min(places.values())
    last = max(at + len(reply.sentinels[name]) for name, at in places.items())
    if reply.prefix and "content" in places:
        return ShownReply(places["content"], turn.end_of_turn(text, last), True)
    start = cursor + _reply_start(text[cursor:first], reply.opener, template)
    whole = "reasoning" in places if "reasoning" in reply.sentinels else True
    if reply.closes_empty_reasoning:
        whole = turn.end_think in text[start:first]
    if not whole:
        has_content = places.get("content") == first
        start = (
            _answer_start(reply, text, start, first, template)
            if has_content
            else _calls_start(text, start, first, turn)
        )
    return ShownReply(start, turn.end_of_turn(text, last), whole)


def _reply_start(before: str, opener: str, template: ChatTemplate) -> int:
    """The start of a reply, searched in the text before its first sentinel by the end of the prompt it was sampled from.

    Some templates render a prompt's end differently later (no empty reasoning, other blanks): then the reply begins after
    the last control token common to both, and any equal whole lines after it. DeepSeek-V3's writes no header before a later
    call: then it begins after the whole text, which is the user's, up to the header that is missing.
    """
    at = before.rfind(opener)
    if at >= 0:
        return at + len(opener)
    head = template.special.tokens.match(opener)
    at = before.rfind(head.group()) if head else before.rfind(MARK_END) + 1
    if at < 0:
        return len(before)
    shown, read, seen = before[at:], 0, 0
    tokens = template.added_re.finditer
    for mine, other in zip(tokens(opener), tokens(shown), strict=False):
        if mine.group() != other.group():
            break
        read, seen = mine.end(), other.end()
    message = template.added_re.search(opener, read)
    if message and shown.startswith(opener[read : message.start()], seen):
        return at + seen + message.start() - read  # without the header, what stands before the header is no reply
    common = opener[read : read + common_length(opener[read:], shown[seen:])]
    return at + seen + common.rfind("\n") + 1


def _calls_start(text: str, start: int, first: int, turn: TurnFormat) -> int:
    """For a reply shown from `start` without its reasoning and content: the start of its calls, the first named at `first`."""
    at = text.rfind(turn.call_opening, start, first) if turn.call_opening else -1
    return at if at >= 0 else start


def _answer_start(reply: SampledReply, text: str, start: int, first: int, template: ChatTemplate) -> int:
    """For a reply shown from `start` without its reasoning: the start of its content, which begins at `first` without blanks."""
    # Some templates write a token before every content: the first sampled token after the reasoning.
    tokens = list(template.added_re.finditer(text, start, first))
    if tokens and not text[tokens[-1].end() : first].strip():
        token = template.token_id(tokens[-1].group())
        if reply.ids_without_reasoning()[:1] == [token]:
            return tokens[-1].start()
    return first
