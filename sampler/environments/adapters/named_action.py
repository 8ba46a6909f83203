"""Which action a reply names, for every adapter whose worlds have numbered or text actions: read exactly, or refused.

    reply ─▶ what stands in <action>…</action>, else the whole reply, else its last sentence if all of it is understood
      ├─ "left", "LEFT.", "**left**", "2", "2.0", "−1", "1,234", "I choose 3 (confidence 0.9)"     ─▶ the action
      └─ "left or right", "not left", "I give up", "3/4", a Cyrillic "lеft", two different marks   ─▶ Unread: what was found

A text action is the text as the model wrote it, with its case and its leading blanks. Standard library only, as workers are.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from sampler.environments.checked_step import shown
from sampler.environments.environment import TaskRefused

MAX_WORDS = 40  # of a sentence that chooses
MAX_LISTED = 50  # names of actions, in a message to the model
_OPENING, _CLOSING = re.compile("<action>", re.IGNORECASE), re.compile("</action>", re.IGNORECASE)
_AROUND = " \t\r\n*_`\"'“”‘’«»()[]{}.,;:!"  # what people set around a name, and is no part of it
_AROUND_NUMBERS = " \t\r\n*_`\"'“”‘’«»()[]{};:!#"  # a number's own sign and point stay
_MINUS = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-")
)  # the sign, hyphens and short dashes
_THOUSANDS = ",'\u2009\u202f\u00a0"
_NUMBER = re.compile(rf"[-+]?(?:\d{{1,3}}(?:[{_THOUSANDS}]\d{{3}})+|\d+)(?:\.\d*)?(?:[eE][-+]?\d{{1,3}})?")
_ASIDE = re.compile(r"\([^()]*\)")
_SENTENCE = re.compile(r"[.!](?=\s|$)|\n")
# Of a sentence that chooses: with the action alone beside them, it is understood.
_CHOOSING = frozenset(
    re.findall(
        r"\S+",
        """
        i i'll i’ll i'm i’m we we'll we’ll will should must going to let us me let's let’s go take choose pick select
        play do perform use try move now then next so thus therefore hence finally ok okay and the my our a an action
        actions answer choice number option final is
        """,
    )
)


class Unread(Exception):
    """The reply names no action of the world. The text is for the model: what was found and what is expected."""


class NumberedActions:
    """`count` actions from the number `first` on. `names`: in their order, or none."""

    def __init__(self, first: int, count: int, names: Sequence[str] = ()) -> None:
        self._first, self._count, self._names = first, count, tuple(names)
        folded = {_folded(name): first + k for k, name in enumerate(names)}
        self._same = (
            _folded if len(folded) == len(names) else _composed
        )  # without their case, unless two differ by it alone
        self._numbers = {self._same(name): first + k for k, name in enumerate(names)}
        # "2" may be a name, and must then not be a place too
        self._takes_numbers = all(number_in(name) is None for name in names)

    @property
    def ask(self) -> str:
        rest = len(self._names) - MAX_LISTED
        listed = ", ".join(self._names[:MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
        numbers = f"a number from {self._first} to {self._first + self._count - 1}"
        return f"Reply with one action: {listed or numbers}."

    def read(self, text: str) -> int:
        """The action's number. Raises Unread."""
        marked = marked_text(text)
        named = self._named(text if marked is None else marked)
        if named is None and marked is not None:
            raise Unread(f"{shown(marked)} names no action. {self.ask}")
        return self._chosen(text) if named is None else named

    def _named(self, text: str) -> int | None:
        """The action that all of the text is."""
        for form in (text, text.strip(_AROUND)):
            named = self._numbers.get(self._same(form))
            if named is not None:
                return named
        number = number_in(text.strip(_AROUND_NUMBERS).rstrip(",")) if self._takes_numbers else None
        if number is None or number != number.to_integral_value():
            return None
        return int(number) if self._first <= number < self._first + self._count else None

    def _chosen(self, text: str) -> int:
        """By the last sentence, where each of its words is understood and no other sentence chooses another action."""
        sentences = [one for one in _SENTENCE.split(_ASIDE.sub(self._aside, text)) if one.strip(_AROUND)]
        chosen = [self._choice(sentence.split()) for sentence in sentences]
        last = chosen[-1] if chosen else None
        if last is None:
            raise Unread(
                f"{shown(text)} names no action that can be read without doubt. {self.ask} Write it alone, or between <action> "
                "and </action>."
            )
        if set(chosen) - {None, last}:
            raise Unread(f"The reply names several actions. {self.ask} Write one between <action> and </action>.")
        return last

    def _aside(self, aside: re.Match[str]) -> str:
        """What stands in brackets is left out, unless it names an action."""
        return aside[0] if any(self._named(word) is not None for word in aside[0].split()) else " "

    def _choice(self, words: Sequence[str]) -> int | None:
        """The action of a sentence that has no other word than those of `_CHOOSING`."""
        if len(words) > MAX_WORDS:
            return None
        known = [word.strip(_AROUND).lower() in _CHOOSING and self._named(word) is None for word in words]
        for start in range(known.index(False) + 1 if False in known else 0):
            for end in range(len(words), start, -1):
                named = self._named(" ".join(words[start:end])) if all(known[end:]) else None
                if named is not None:
                    return named
        return None


@dataclass(frozen=True, slots=True)
class TextActions:
    """`takes`: whether the world takes a text. `expected`: which it takes, in words."""

    takes: Callable[[str], bool]
    expected: str

    @property
    def ask(self) -> str:
        return "Reply with your action between <action> and </action>."

    def read(self, text: str) -> str:
        """As the model wrote it; without the blanks around it only where the world takes none. Raises Unread."""
        marked = marked_text(text)
        raw = text if marked is None else marked
        for form in (raw, raw.strip("\r\n"), raw.strip()):
            if self.takes(form):
                return form
        raise Unread(f"{shown(raw)} ({len(raw):,} characters) is no action; expected {self.expected}. {self.ask}")


def marked_text(text: str) -> str | None:
    """What stands between <action> and </action>; None: there is no such mark. Raises Unread for several that differ. In time
    that grows with the length of the text alone."""
    marked: dict[str, None] = {}
    place = 0
    while (begin := _OPENING.search(text, place)) and (end := _CLOSING.search(text, begin.end())):
        marked[text[begin.end() : end.start()]] = None
        place = end.end()
    if len(marked) > 1:
        raise Unread(f"The reply has {len(marked)} actions between <action> and </action>; expected one.")
    return next(iter(marked), None)


def number_in(text: str) -> Decimal | None:
    """The number that all of the text is: 3, −1, 2.0, 1e0, 1,234. None: it is no number."""
    digits = text.translate(_MINUS)
    if not _NUMBER.fullmatch(digits):
        return None
    return Decimal(digits.translate(dict.fromkeys(map(ord, _THOUSANDS))))


def action_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    """As given. Raises TaskRefused for names that do not tell `count` actions apart."""
    if len(names) != count:
        raise TaskRefused(f"actions has {len(names)} names; expected {count}, one for each action")
    seen: set[str] = set()
    for k, name in enumerate(names):
        if not name.strip(_AROUND):
            raise TaskRefused(f"actions.{k} is {name!r}; expected a name with a letter or a digit")
        if _composed(name) in seen:
            raise TaskRefused(
                f"actions.{k} is {name!r} again; expected {count} different names, not {', '.join(names)}"
            )
        seen.add(_composed(name))
    return tuple(map(_composed, names))


def _composed(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).split())


def _folded(name: str) -> str:
    return _composed(name).casefold()
