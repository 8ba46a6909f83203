"""What was said in an episode, as the next request shows it, and the pure functions that make another history of it.

    opening          rounds                                                          notes
    system, query    reply, its tools' results | reply, its tools' results | …       a summary of what is no longer there

Promise: replies are kept or left out whole. A kept reply is the very message of its turn, by which `Context.restart` knows the
ids that were sampled. What answers a reply's calls stays behind it, with the same call ids, so that every template that takes
the history takes the rewritten one. The notes stand at the end of the query, for the same reason: two messages of a user in a
row are refused by some templates.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

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
    """One reply and the messages that answered it. `said`: equal for replies that say and call the same."""

    reply: Message
    answers: tuple[Message, ...]
    said: str

    def cleared(self) -> "Round":
        """Without what tools said."""
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
    return {**message, "content": f"{message['content']}\n\n{text}"}


def without_repeats(history: History) -> History:
    """Of rounds that say the same, the first."""
    first: dict[str, Round] = {}
    for one in history.rounds:
        first.setdefault(one.said, one)
    return replace(history, rounds=tuple(first.values()))


def discard_all_tools(history: History, tokens: Callable[[History], int], budget: int) -> History:
    """Tool results become one line each, except the newest, which the model has not read yet.

    The prompt should take half of the `budget`, so that the next rewriting, and the prefill it costs, are some turns away:
    the oldest rounds are left out for that, as few as possible. Where the newest results are too long for it they may take
    all of the budget; where they do not fit at all they are removed too. What cannot be made to fit comes back without rounds.
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
    """The opening and a summary. It replaces earlier notes, which its writer has read."""
    return History(history.opening, (), summary)


def asking_for_a_summary(messages: Sequence[Message]) -> list[Message]:
    """`messages` with the request at the end of the last one."""
    return [*messages[:-1], with_text(messages[-1], SUMMARY_REQUEST)]


def transcript(history: History) -> str:
    """For a reader who is not the policy: notes, replies with their calls, results."""
    lines = [f"[Notes on earlier steps]: {history.notes}"] if history.notes else []
    for one in history.rounds:
        calls = [call["function"] for call in one.reply.get("tool_calls", ())]
        lines.append(" ".join(["[Agent]:", one.reply["content"], *(f"{c['name']}({c['arguments']})" for c in calls)]))
        lines += [f"[{message.get('name') or message['role']}]: {message['content']}" for message in one.answers]
    return "\n\n".join(lines)
