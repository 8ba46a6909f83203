"""Refuses a list of new messages that repeats the thread so far, which would be sent twice.

    sent      system, question | reply 1 | result | reply 2
    refused   system, question, reply 1, result, reply 2, result     the whole history, as most chat APIs expect it
              reply 2, result                                        the reply and its result
    passes    result                                               only the new message

From the second request of a thread on, a list is refused if
  * a message is a reply of this thread: the same object, or an assistant message with the same content that begins the
    list or follows the message that this reply answered;
  * it begins with a system message that began a history;
  * it begins with a whole opening (`start`, or a restart), followed by an assistant message or a tool result.

User messages always pass, even verbatim repetitions: an environment may show the same thing twice. So does an
assistant message whose content happens to equal a reply (an example after another question).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sampler.core.errors import MessagesRepeat
from sampler.core.rendering.reply_message import Words, words_of
from shared.names import INSTRUCTING_ROLES

Message = Mapping[str, Any]
SeatTurn = tuple[str, Words]  # role, and the words of one message

REMEDY = "send only what is new since the last reply, or restart=True with the whole history"


@dataclass(frozen=True, slots=True)
class _Reply:
    message: Message
    words: frozenset[Words]
    asked: SeatTurn | None  # the last message before it
    number: int


class SentMessages:
    """The messages that one policy received and wrote in one thread of an episode."""

    def __init__(self, policy: str, thread: str | None = None) -> None:
        self._where = f"policy {policy}" if thread is None else f"policy {policy}, thread {thread}"
        self._openings: list[list[SeatTurn]] = []
        self._replies: list[_Reply] = []
        self._last: SeatTurn | None = None

    def send(self, messages: Sequence[Message], *, restart: bool) -> None:
        """Raises MessagesRepeat for a list that repeats earlier messages; such a list is not recorded."""
        entries = [_entry(message) for message in messages]
        if restart or not self._openings:
            self._openings.append(entries)
        elif (problem := self._own_reply(messages, entries) or self._beginning(entries)) is not None:
            raise MessagesRepeat(f"messages repeat what was sent: {problem}; {REMEDY} ({self._where})")
        self._last = entries[-1] if entries else None

    def replied(self, message: Message, words: frozenset[Words]) -> None:
        """`words`: as returned by `reply_words`."""
        self._replies.append(_Reply(message, words, self._last, len(self._replies) + 1))

    def copy(self) -> "SentMessages":
        twin = copy.copy(self)
        twin._openings, twin._replies = list(self._openings), list(self._replies)
        return twin

    def _own_reply(self, messages: Sequence[Message], entries: Sequence[SeatTurn]) -> str | None:
        for at, message in enumerate(messages):
            for reply in self._replies:
                repeats = entries[at][0] == "assistant" and entries[at][1] in reply.words
                if message is reply.message or (repeats and (at == 0 or entries[at - 1] == reply.asked)):
                    return f"message {at + 1} of {len(messages)} is the model's own reply {reply.number}"
        return None

    def _beginning(self, entries: Sequence[SeatTurn]) -> str | None:
        for opening in self._openings:
            if entries[:1] == opening[:1] and entries and entries[0][0] in INSTRUCTING_ROLES:
                return f"message 1 of {len(entries)} is the earlier system message"
            size = len(opening)
            if 0 < size < len(entries) and entries[:size] == opening and entries[size][0] in ("assistant", "tool"):
                return f"the first {size} of {len(entries)} are the episode's opening"
        return None


def _entry(message: Message) -> SeatTurn:
    return str(message.get("role")), words_of(message)
