"""Every reply of one policy in an episode, in all its threads, and how messages are matched to them.

A message matches a reply if it is the same object, or has the same content: text, reasoning and calls of the turn's
message, or the reply's raw text as its content. So a history keeps the sampled ids of a reply, whether the sampler holds
the object, a copy or a JSON round trip of it, and even after other histories and in other threads. Of several replies with
the same content, the one that was sampled after the same messages is meant; or else the thread's own, or else the newest.
An assistant message that the sampler wrote itself is plain text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.rendering.reply_message import Words, words_of
from sampler.core.rendering.sampled_reply import SampledReply
from sampler.core.rendering.template import Message

History = int  # a hash of everything before a message: equal for equal messages with the same replies among them
START: History = 0
Thread = object  # a key of the thread that a reply or message belongs to


def history_with(history: History, message: Mapping[str, Any], reply: SampledReply | None) -> History:
    """The history with one more message; `reply`: the sampled reply that it is."""
    entry = (message.get("role"), words_of(message)) if reply is None else reply.number
    return hash((history, entry))


@dataclass(frozen=True, slots=True)
class _Walk:
    """A history up to a message that is `reply`, if it is any; `exact` of its replies were sampled after exactly the same."""

    history: History
    exact: int = 0
    before: "_Walk | None" = None
    reply: SampledReply | None = None

    def then(self, message: Message, reply: SampledReply | None, is_exact: bool) -> "_Walk":
        return _Walk(history_with(self.history, message, reply), self.exact + is_exact, self, reply)

    def replies(self) -> list[SampledReply | None]:
        replies, walk = [], self
        while walk.before is not None:
            replies.append(walk.reply)
            walk = walk.before
        return replies[::-1]


class SampledReplies:
    def __init__(self) -> None:
        self._in_order: list[tuple[Thread, SampledReply | Words]] = []  # words: of a message that the sampler wrote
        self._sampled: dict[History, list[SampledReply]] = {}
        self._written: set[tuple[History, Words]] = set()

    def add(self, reply: SampledReply, history: History = START, thread: Thread = None) -> None:
        self._in_order.append((thread, reply))
        self._sampled.setdefault(history, []).append(reply)

    def wrote(self, message: Message, history: History = START, thread: Thread = None) -> None:
        """Mark a message as written by the sampler, even if a later reply has the same content."""
        if message.get("role") == "assistant":
            words = words_of(message)
            self._in_order.append((thread, words))
            self._written.add((history, words))

    def among(self, messages: Sequence[Message], thread: Thread = None) -> list[SampledReply | None]:
        """For each message the matching reply, if any. A message that occurs twice gets two replies with distinct sentinels."""
        if not self._sampled:
            return [None] * len(messages)
        objects = {id(one.message): one for _, one in self._in_order if isinstance(one, SampledReply) and one.message}
        given = [objects.get(id(message)) for message in messages]
        copies = {
            at: words_of(message)
            for at, (message, reply) in enumerate(zip(messages, given, strict=True))
            if reply is None and message.get("role") == "assistant"
        }
        matched = self._aligned(given, copies, thread)
        if copies:
            matched = self._after_the_same(messages, matched, copies)
        used: set[int] = set()
        for at, reply in enumerate(matched):
            if reply is not None and id(reply) in used:
                matched[at] = reply.again()
            used.add(id(reply))
        return matched

    def copy(self) -> "SampledReplies":
        twin = SampledReplies()
        twin._in_order, twin._written = list(self._in_order), set(self._written)
        twin._sampled = {history: list(replies) for history, replies in self._sampled.items()}
        return twin

    def _aligned(
        self, given: Sequence[SampledReply | None], copies: Mapping[int, Words], thread: Thread
    ) -> list[SampledReply | None]:
        """By content alone. Among replies with the same content prefer the latest: histories are cut at their beginning."""
        matched, saying = list(given), self._saying(thread) if copies else {}
        for words in saying.keys() & copies.values():
            places = [
                at for at, reply in enumerate(given) if copies.get(at) == words or (reply and words in reply.words)
            ]
            meant = [saying[words][0]] * len(places) + saying[words]
            for at, reply in zip(reversed(places), reversed(meant), strict=False):
                matched[at] = given[at] or reply
        return matched

    def _after_the_same(
        self, messages: Sequence[Message], matched: Sequence[SampledReply | None], copies: Mapping[int, Words]
    ) -> list[SampledReply | None]:
        """The same, but for what was sampled or written after exactly these messages. Where several fit, the later messages
        decide: that one of which most replies were sampled so; or else `matched`, or else the newest."""
        walks = [_Walk(START)]
        for at, message in enumerate(messages):
            walks = [
                walk.then(message, *choice) for walk in walks for choice in self._choices(walk, at, matched, copies)
            ]
        return max(walks, key=lambda walk: walk.exact).replies()  # of equal ones the first

    def _choices(
        self, walk: "_Walk", at: int, matched: Sequence[SampledReply | None], copies: Mapping[int, Words]
    ) -> list[tuple[SampledReply | None, bool]]:
        """What the message at `at` may be, best first, and whether it was sampled after exactly this history."""
        if at not in copies:
            return [(matched[at], False)]
        sampled = [one for one in reversed(self._sampled.get(walk.history, ())) if copies[at] in one.words]
        if sampled:
            return [(one, True) for one in sorted(sampled, key=lambda one: one is not matched[at])]
        return [(None if (walk.history, copies[at]) in self._written else matched[at], False)]

    def _saying(self, thread: Thread) -> dict[Words, list[SampledReply | None]]:
        """Replies by their words, in order; None: the sampler wrote it. Other threads' only where this one has none."""
        own: dict[Words, list[SampledReply | None]] = {}
        others: dict[Words, list[SampledReply | None]] = {}
        for whose, one in self._in_order:
            if not isinstance(one, Words):
                saying = own if whose is thread else others
                for words in one.words:
                    saying.setdefault(words, []).append(one)
            elif whose is thread:
                own.setdefault(one, [None])
        return others | own
