"""Who speaks when: round specifications in the grammar of AgentRL's rl-actors.

    piece ("->" piece)*      piece = who [repeat]      who = "*" (any seat) | NAME | "(" NAME "/" NAME … ")"
    repeat = "*N" | "*(a..b)"

    "A -> B -> (C/D)*2 -> *"     A, then B, then twice C or D, then anyone

What is open is drawn by a hash of a key (the task and the slot): every retry, and every process, draws the same. An error names
the place: `rounds: at 6: found "-"; expected …`.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_TURNS = 10_000  # of one specification
MAX_CHARS = 10_000
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_]|-(?!>))*")
_NUMBER = re.compile(r"[0-9]{1,6}")
_SPACE = re.compile(r"\s*")


class WrongRounds(ValueError):
    """What is wrong, and where."""


@dataclass(frozen=True, slots=True)
class RoundsPiece:
    """`names`: one of them speaks, drawn anew for every turn; (): any seat. From `least` to `most` turns."""

    names: tuple[str, ...]
    least: int = 1
    most: int = 1


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def pieces(self) -> Iterator[RoundsPiece]:
        yield self._piece()
        while not self._is_over():
            if not self._takes("->"):
                raise self._wrong('"->", "*N" or the end')
            yield self._piece()

    def _piece(self) -> RoundsPiece:
        names = self._who()
        least = most = 1
        if self._takes("*"):
            if self._takes("("):
                least = self._number(0)
                self._needs("..")
                most = self._number(max(1, least))
                self._needs(")")
            else:
                least = most = self._number(1)
        return RoundsPiece(names, least, most)

    def _who(self) -> tuple[str, ...]:
        if self._takes("*"):
            return ()
        if not self._takes("("):
            return (self._name(),)
        names = [self._name()]
        while self._takes("/"):
            names.append(self._name())
        self._needs(")")
        return tuple(names)

    def _name(self) -> str:
        word = self._match(_NAME)
        if word is None:
            raise self._wrong('a seat\'s name, "*" or "("')
        return word

    def _number(self, least: int) -> int:
        self._skip()
        begin, digits = self._at, self._match(_NUMBER)
        if digits is None or int(digits) < least:
            self._at = begin
            raise self._wrong(f"a number from {least} on")
        return int(digits)

    def _needs(self, token: str) -> None:
        if not self._takes(token):
            raise self._wrong(f'"{token}"')

    def _takes(self, token: str) -> bool:
        self._skip()
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._skip()
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match.group()

    def _is_over(self) -> bool:
        self._skip()
        return self._at >= len(self._text)

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at

    def _wrong(self, expected: str) -> WrongRounds:
        self._skip()
        actual = f'"{self._text[self._at]}"' if self._at < len(self._text) else "the end"
        return WrongRounds(f"rounds: at {self._at}: found {actual}; expected {expected}, as in A -> (B/C)*2 -> *")


def parse_rounds(text: str) -> list[RoundsPiece]:
    """Raises WrongRounds that names the place."""
    if len(text) > MAX_CHARS:
        raise WrongRounds(f"rounds: {len(text)} characters; expected at most {MAX_CHARS}")
    pieces = list(_Reader(text).pieces())
    if not any(piece.least for piece in pieces):
        raise WrongRounds(f"rounds: {text!r} may have no turn at all; expected at least one piece that is always there")
    most = sum(piece.most for piece in pieces)
    if most > MAX_TURNS:
        raise WrongRounds(f"rounds: up to {most} turns; expected at most {MAX_TURNS}")
    return pieces


def check_rounds(text: str, seats: Sequence[str] | None = None) -> None:
    """Raises WrongRounds for what is no specification, or names a seat that is none of `seats`."""
    for piece in parse_rounds(text):
        unknown = [name for name in piece.names if seats is not None and name not in seats]
        if unknown:
            raise WrongRounds(f"rounds: {unknown[0]!r} is no seat; expected one of {', '.join(seats or ()) or 'none'}")


def draw_rounds(text: str, seats: Sequence[str], key: str) -> list[str]:
    """The seats that speak, in order. The same for the same arguments, everywhere. Raises WrongRounds."""
    check_rounds(text, seats)
    if not seats:
        raise WrongRounds("rounds: there is no seat")
    draws = _Draws(key)
    order: list[str] = []
    for piece in parse_rounds(text):
        turns = piece.least + draws.below(piece.most - piece.least + 1)
        names = piece.names or tuple(seats)
        order += [names[draws.below(len(names))] for _ in range(turns)]
    return order


class _Draws:
    """Numbers from a hash of the key: Python's own generators may change between versions."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = 0

    def below(self, most: int) -> int:
        """Evenly from 0 to `most` - 1 (64 bits of a hash: the unevenness is below 10^-14)."""
        self._count += 1
        digest = hashlib.sha256(f"{self._key}\n{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % most
