"""The one boundary for plain values from outside (a request of an agent, a tool's answer, a task, a score): what store,
tokenizer and JSON can hold.

Well-formed text without U+0000, whole numbers of 64 bits, finite floats, texts as names, at most `MAX_DEPTH` levels. Anything
else has a `ValueProblem`, which says where it is and what it is. Texts of a conversation may contain U+0000 (`with_nul`): a
model may sample it, and its agent sends the reply back. Names and arguments of calls may not: tools end texts there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 64  # MongoDB stores 100 levels, pydantic serializes 255
MAX_PATH_CHARS = 200


@dataclass(frozen=True, slots=True)
class ValueProblem:
    """`path`: such as `messages[0].content`; empty: the value itself. `what`: a predicate, such as "is no number: nan is no
    JSON"."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path or 'the value'} {self.what}"


def problem_of(
    value: Any, path: str = "", most_depth: int = MAX_DEPTH, *, with_nul: bool = False
) -> ValueProblem | None:
    """The first problem of a plain value, its shallowest. None: every part can be stored, encoded and sent. `with_nul`: texts
    may contain U+0000."""
    return None if _is_clean(value, most_depth, with_nul) else _located(value, path, most_depth, with_nul)


def _is_clean(value: Any, most_depth: int, with_nul: bool) -> bool:
    level = [value]
    for _ in range(most_depth + 1):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                if _problem_of_names(one):
                    return False
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif problem_of_plain(one, with_nul=with_nul):
                return False
        if not inner:
            return True
        level = inner
    return False


def _located(value: Any, path: str, most_depth: int, with_nul: bool) -> ValueProblem | None:
    level: list[tuple[_Place, Any]] = [(_Place(None, path), value)]
    for _ in range(most_depth + 1):
        inner: list[tuple[_Place, Any]] = []
        for place, one in level:
            what = _problem_of_names(one) if isinstance(one, dict) else problem_of_plain(one, with_nul=with_nul)
            if what:
                return ValueProblem(place.path, what)
            inner += _members(one, place)
        if not inner:
            return None
        level = inner
    return ValueProblem(level[0][0].path, f"is nested more than {most_depth} levels deep")


def problem_of_plain(value: Any, *, with_nul: bool = False) -> str:
    """Of a text, a number, a truth value or nothing; empty if there is none, and for values with members."""
    if isinstance(value, str):
        if "\0" in value and not with_nul:
            return "contains the character \\u0000, which is not allowed"
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return "contains half of a surrogate pair"
    elif isinstance(value, float) and not math.isfinite(value):
        return f"is no number: {value} is no JSON"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "is a whole number of more than 64 bits; write it as a text"
    return ""


@dataclass(frozen=True, slots=True)
class _Place:
    """A member of its parent. Its path is written when it is needed: a body has a million members."""

    parent: "_Place | None"
    name: str | int

    @property
    def path(self) -> str:
        names: list[str] = []
        place: _Place | None = self
        while place is not None:
            names.append(f"[{place.name}]" if isinstance(place.name, int) else f".{place.name}" if place.name else "")
            place = place.parent
        text = "".join(reversed(names)).removeprefix(".").encode("utf-8", "backslashreplace").decode()
        return text if len(text) <= MAX_PATH_CHARS else f"{text[: MAX_PATH_CHARS - 1]}…"


def _members(value: Any, place: _Place) -> Iterator[tuple[_Place, Any]]:
    if isinstance(value, dict):
        return ((_Place(place, name), one) for name, one in value.items())
    return ((_Place(place, at), one) for at, one in enumerate(value if isinstance(value, list) else ()))


def _problem_of_names(value: dict[Any, Any]) -> str:
    for name in value:
        if not isinstance(name, str):
            return f"has a name that is {type(name).__name__}, not a text"
        if "\0" in name:
            return "has a name with the character \\u0000, which is not allowed in a name"
        what = problem_of_plain(name)
        if what:
            return f"has a name that {what}"
    return ""
