"""The conversation of an episode for its scorer: all messages that the task's own policy received and wrote in a thread,
each once, thread by thread.

    sent       S Q          r1    t1          r2    restart: S Q r1 [removed] r2 t2          r3
    here      S Q          r1    t1          r2                                t2           r3

A restart shows a history again, often a shorter one. Messages in it are new if they follow its last reply (any message, if it
contains no reply, as after a summary) and did not occur before. A restart removes nothing.

Bounded: beyond `MAX_CHARS` the oldest messages after the opening are dropped, and one message gives their number.
"""

import copy
import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from sampler.core.rendering.reply_message import Words, words_of

Message = Mapping[str, Any]
SeatTurn = tuple[str, Words]  # role, and the words of one message

# A context of 128k tokens is about 500,000 characters. Only context policies make an episode longer than its context.
MAX_CHARS = 2_000_000


class Transcript:
    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._opening: list[Message] = []
        self._rest: deque[tuple[Message, int]] = deque()  # with their lengths in characters
        self._chars = 0
        self._left_out = 0
        self._times: Counter[SeatTurn] = Counter()  # how often the policy received a message
        self._replies: dict[SeatTurn, list[int]] = {}  # reply numbers, by the forms in which samplers keep them
        self._count = 0

    def received(self, messages: Sequence[Message], *, restart: bool) -> None:
        """`restart`: the messages are a whole history."""
        names = [_name(message) for message in messages]
        known, replies = self._known(names) if restart else (set[int](), set[int]())
        is_opening = not self._times
        for at, (name, message) in enumerate(zip(names, messages, strict=True)):
            if at in known or at <= max(replies, default=-1):
                continue
            self._times[name] += 1
            if is_opening:
                self._opening.append(copy.deepcopy(message))
            else:
                self._add(message)

    def replied(self, message: Message, words: frozenset[Words]) -> None:
        """`words`: as returned by `reply_words`."""
        for one in words:
            self._replies.setdefault(("assistant", one), []).append(self._count)
        self._count += 1
        self._add(message)

    def messages(self) -> tuple[Message, ...]:
        gap = {"role": "system", "content": f"[{self._left_out} messages are left out here]"}
        return (*self._opening, *[gap] * (self._left_out > 0), *(message for message, _ in self._rest))

    @property
    def chars(self) -> int:
        """Without the opening."""
        return self._chars

    def _known(self, names: Sequence[SeatTurn]) -> tuple[set[int], set[int]]:
        """Positions of received messages, counted as often as they occur, and of replies, each once."""
        remaining, used = Counter(self._times), set[int]()
        shown, replies = set[int](), set[int]()
        for at, name in enumerate(names):
            if remaining[name] > 0:
                remaining[name] -= 1
                shown.add(at)
            elif unused := [number for number in self._replies.get(name, ()) if number not in used]:
                used.add(unused[0])
                replies.add(at)
        return shown, replies

    def _add(self, message: Message) -> None:
        chars = len(json.dumps(message, default=str, ensure_ascii=False))
        self._rest.append((copy.deepcopy(message), chars))
        self._chars += chars
        while self._chars > self._max_chars and len(self._rest) > 1:
            self._chars -= self._rest.popleft()[1]
            self._left_out += 1


def joined(threads: Sequence[Transcript], max_chars: int = MAX_CHARS) -> tuple[Message, ...]:
    """The messages of several threads, one thread after the other. Beyond `max_chars` the oldest threads are dropped."""
    first, chars = len(threads), 0
    while first > 0 and (first == len(threads) or chars + threads[first - 1].chars <= max_chars):
        first -= 1
        chars += threads[first].chars
    gap = {"role": "system", "content": f"[{first} threads are left out here]"}
    return (*[gap] * (first > 0), *(message for thread in threads[first:] for message in thread.messages()))


def _name(message: Message) -> SeatTurn:
    return str(message.get("role")), words_of(message)
