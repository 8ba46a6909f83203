"""Every reply of a model in an episode, also those that the current history does not show, and which messages are them.

A message is a reply where it is the very object of a turn, or says the same: text, reasoning and calls of the turn's
message, or the reply's raw text as its content. So a history keeps the ids of a reply as they were sampled, whether a
sampler holds the object, a copy or what came back from JSON, and other histories may have come between. An assistant's message
that the sampler wrote itself is text.
"""

from collections.abc import Sequence

from sampler.rendering.sampled_reply import SampledReply
from sampler.rendering.template import Message
from sampler.rendering.words import Words, words_of


class KnownReplies:
    def __init__(self) -> None:
        self._in_order: list[SampledReply | Words] = []  # words: of a message that the sampler wrote itself

    def add(self, reply: SampledReply) -> None:
        self._in_order.append(reply)

    def wrote(self, messages: Sequence[Message]) -> None:
        """The sampler wrote these itself, also where a later reply will say the same."""
        self._in_order += [words_of(message) for message in messages if message.get("role") == "assistant"]

    def among(self, messages: Sequence[Message]) -> list[SampledReply | None]:
        """For each message the reply that it is. One that stands there twice is two, with sentinels of their own."""
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
            # Of several that said the same the latest are meant: histories are cut at their beginning.
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
        """By their words, in order; None: the sampler wrote it."""
        saying: dict[Words, list[SampledReply | None]] = {}
        for one in self._in_order:
            if isinstance(one, Words):
                saying.setdefault(one, [None])
            else:
                for words in one.words:
                    saying.setdefault(words, []).append(one)
        return saying
