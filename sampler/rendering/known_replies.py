"""Every reply of a model in an episode, including those that the current history omits, and how messages are matched to them.

A message matches a reply if it is the same object, or has the same content: text, reasoning and calls of the turn's
message, or the reply's raw text as its content. So a history keeps the sampled ids of a reply, whether the sampler holds
the object, a copy or a JSON round trip of it, and even after other histories. An assistant message that the sampler
wrote itself is plain text.
"""

from collections.abc import Sequence

from sampler.rendering.sampled_reply import SampledReply
from sampler.rendering.template import Message
from sampler.rendering.words import Words, words_of


class KnownReplies:
    def __init__(self) -> None:
        self._in_order: list[SampledReply | Words] = []  # words: of a message that the sampler wrote

    def add(self, reply: SampledReply) -> None:
        self._in_order.append(reply)

    def wrote(self, messages: Sequence[Message]) -> None:
        """Mark messages as written by the sampler, even if a later reply has the same content."""
        self._in_order += [words_of(message) for message in messages if message.get("role") == "assistant"]

    def among(self, messages: Sequence[Message]) -> list[SampledReply | None]:
        """For each message the matching reply, if any. A message that occurs twice gets two replies with distinct sentinels."""
        objects = {id(one.message): one for one in self._in_order if isinstance(one, SampledReply) and one.message}
        given = [objects.get(id(message)) for message in messages]
        copies = {
            at: words_of(message)
            for at, (message, reply) in enumerate(zip(messages, given, strict=True))
            if reply is None and message.get("role") == "assistant"
        }
        found, saying = list(given), self._saying() if copies else {}
        for words in saying.keys() & copies.values():
            places = [
                at for at, reply in enumerate(given) if copies.get(at) == words or (reply and words in reply.words)
            ]
            # Among replies with the same content prefer the latest: histories are cut at their beginning.
            meant = [saying[words][0]] * len(places) + saying[words]
            for at, reply in zip(reversed(places), reversed(meant), strict=False):
                found[at] = given[at] or reply
        used: set[int] = set()
        for at, reply in enumerate(found):
            if reply is not None and id(reply) in used:
                found[at] = reply.again()
            used.add(id(reply))
        return found

    def copy(self) -> "KnownReplies":
        twin = KnownReplies()
        twin._in_order = list(self._in_order)
        return twin

    def _saying(self) -> dict[Words, list[SampledReply | None]]:
        """Replies by their words, in order; None: the sampler wrote it."""
        saying: dict[Words, list[SampledReply | None]] = {}
        for one in self._in_order:
            if isinstance(one, Words):
                saying.setdefault(one, [None])
            else:
                for words in one.words:
                    saying.setdefault(words, []).append(one)
        return saying
