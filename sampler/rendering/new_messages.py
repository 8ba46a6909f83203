"""Refuses a list that should hold the messages that are new, and holds the conversation so far: it would be sent twice.

    sent      system, question | reply 1 | result | reply 2
    refused   system, question, reply 1, result, reply 2, result     the whole history, as most chat APIs want it
              reply 2, result                                        the reply with its answer
    passes    result                                               what is new

A list is refused, from the second request on, where
  * a message is a reply of this episode: the object, or an assistant's message that says the same and begins the list
    or stands behind the message that this reply answered;
  * it begins with a system message that began a history;
  * it begins with a whole opening (`start`, or a restart), and goes on with an assistant's message or a tool's result.

What users say passes, also word for word what they said before: an environment may show the same thing twice. So does
an assistant's message that happens to say what a reply said (an example, behind another question).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.rendering.words import Words, words_of
from shared.errors import ConfigError

Message = Mapping[str, Any]
Said = tuple[str, Words]  # role, and what one message says

REMEDY = "send only what is new since the last reply, or restart=True with the whole history"
SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True)
class _Reply:
    message: Message
    words: frozenset[Words]
    asked: Said | None  # the last message before it
    number: int


class SentMessages:
    """What one policy was sent and replied in one episode."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._openings: list[list[Said]] = []
        self._replies: list[_Reply] = []
        self._last: Said | None = None

    def send(self, messages: Sequence[Message], *, restart: bool) -> None:
        """Raises ConfigError for a list that repeats what was sent; nothing is remembered of it then."""
        said = [_said(message) for message in messages]
        if restart or not self._openings:
            self._openings.append(said)
        elif (problem := self._own_reply(messages, said) or self._beginning(said)) is not None:
            raise ConfigError(f"messages repeat what was sent: {problem}; {REMEDY} (policy {self._policy})")
        self._last = said[-1] if said else None

    def replied(self, message: Message, words: frozenset[Words]) -> None:
        """`words`: by `reply_words`."""
        self._replies.append(_Reply(message, words, self._last, len(self._replies) + 1))

    def copy(self) -> "SentMessages":
        twin = copy.copy(self)
        twin._openings, twin._replies = list(self._openings), list(self._replies)
        return twin

    def _own_reply(self, messages: Sequence[Message], said: Sequence[Said]) -> str | None:
        for at, message in enumerate(messages):
            for reply in self._replies:
                repeats = said[at][0] == "assistant" and said[at][1] in reply.words
                if message is reply.message or (repeats and (at == 0 or said[at - 1] == reply.asked)):
                    return f"message {at + 1} of {len(messages)} is the model's own reply {reply.number}"
        return None

    def _beginning(self, said: Sequence[Said]) -> str | None:
        for opening in self._openings:
            if said[:1] == opening[:1] and said and said[0][0] in SYSTEM:
                return f"message 1 of {len(said)} is the system message of before"
            size = len(opening)
            if 0 < size < len(said) and said[:size] == opening and said[size][0] in ("assistant", "tool"):
                return f"the first {size} of {len(said)} are the beginning"
        return None


def _said(message: Message) -> Said:
    return str(message.get("role")), words_of(message)
