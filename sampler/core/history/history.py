"""An episode's history as the next request shows it, and pure functions that rewrite it.

    opening          rounds                                                          notes
    system, query    reply, its tools' results | reply, its tools' results | …       a summary of the removed part

Promise: replies are kept or removed whole. A kept reply is the same message object as in its turn, which lets
`Context.restart` find its sampled ids. The answers to a reply's calls stay after it, with the same call ids, so every
template that accepts the history accepts the rewritten one. The notes are appended to the query for the same reason: some
templates reject two consecutive user messages.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sampler.core.rendering.turn_format import joined
from shared.documents.content import text_of

Message = dict[str, Any]

CLEARED = "[This result was removed to keep the context short.]"
NOTES = "[The steps you took so far were removed to keep the context short. Your notes on them:]"
SUMMARY_REQUEST = (
    "[The context is nearly full. Everything after the question will be removed and replaced by your next reply. Do not call "
    "tools now. Write down, briefly: what you did, what you found out (exact names, numbers and sources), what is still open, "
    "and what to do next.]"
)


@dataclass(frozen=True, slots=True)
class Round:
    """One reply and the messages that answer it. `said` is equal for replies with the same text and calls."""

    reply: Message
    answers: tuple[Message, ...]
    text: str

    def cleared(self) -> "Round":
        """A copy without tool results."""
        return replace(
            self, answers=tuple({**m, "content": CLEARED} if m["role"] == "tool" else m for m in self.answers)
        )


@dataclass(frozen=True, slots=True)
class History:
    opening: tuple[Message, ...]
    rounds: tuple[Round, ...] = ()
    notes: str = ""

    def messages(self) -> list[Message]:
        opening = list(self.opening)
        if self.notes:
            opening[-1] = with_text(opening[-1], f"{NOTES}\n{self.notes}")
        return [*opening, *(message for one in self.rounds for message in (one.reply, *one.answers))]

    def then(self, one: Round) -> "History":
        return replace(self, rounds=(*self.rounds, one))


def with_text(message: Message, text: str) -> Message:
    return {**message, "content": joined(message["content"], text)}


def drop_repeats(history: History) -> History:
    """Keep the first of several rounds that say the same."""
    first: dict[str, Round] = {}
    for one in history.rounds:
        first.setdefault(one.text, one)
    return replace(history, rounds=tuple(first.values()))


def discard_all_tools(history: History, tokens: Callable[[History], int], budget: int) -> History:
    """Replace each tool result by one line, except the newest, which the model has not read yet.

    The prompt should take half of the `budget`, so that the next rewriting, and the prefill it costs, are some turns away:
    as few of the oldest rounds as possible are dropped for that. If the newest results are too long for half, they may take
    all of the budget; if they do not fit even then, they are removed too. If nothing fits, all rounds are dropped.
    """
    cleared = [one.cleared() for one in history.rounds]
    for newest, most in ((history.rounds[-1], budget // 2), (history.rounds[-1], budget), (cleared[-1], budget // 2)):
        tails = [replace(history, rounds=(*cleared[start:-1], newest)) for start in range(len(cleared))]
        start = bisect_left(tails, True, key=partial(_fits, tokens, most))
        if start < len(tails):
            return tails[start]
    return replace(history, rounds=())


def _fits(tokens: Callable[[History], int], most: int, history: History) -> bool:
    return tokens(history) <= most


def discard_all(history: History, summary: str) -> History:
    """The opening and a summary. It replaces earlier notes, which the summary's writer has read."""
    return History(history.opening, (), summary)


def summary_request(messages: Sequence[Message]) -> list[Message]:
    """`messages` with the request for a summary appended to the last one."""
    return [*messages[:-1], with_text(messages[-1], SUMMARY_REQUEST)]


def transcript(history: History) -> str:
    """Text for readers other than the policy: notes, replies with their calls, results."""
    lines = [f"[Notes on earlier steps]: {history.notes}"] if history.notes else []
    for one in history.rounds:
        calls = [call["function"] for call in one.reply.get("tool_calls", ())]
        lines.append(" ".join(["[Agent]:", one.reply["content"], *(f"{c['name']}({c['arguments']})" for c in calls)]))
        lines += [
            f"[{message.get('name') or message['role']}]: {text_of(message['content'], ' ')}" for message in one.answers
        ]
    return "\n\n".join(lines)
