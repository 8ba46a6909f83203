"""The one way in which the boundary converts a value that store, tokenizer or JSON cannot hold, instead of refusing it.

    half a surrogate pair, U+0000        U+FFFD
    a whole number of more than 64 bits  its text
    a float that is not finite           its text: nan, inf, -inf
    a name that is no text               its text
    a tuple, a set, an array, a scalar   the list, the number (numpy, torch, fractions)
    too many levels or members           a text that says so
    anything else                        its `repr`, shortened

Requests of agents are refused instead (`shared/outside_values.py`): their client can mend them. This is for what has no other
reader: a scorer's explanation, the texts of a tool or a world that a user's class passes on.
"""

import math
import numbers
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel

from shared.outside_text import clipped, storable
from shared.outside_values import MAX_DEPTH, problem_of

MAX_MEMBERS = 200_000  # of all levels together: a value that contains itself twice has no end
MAX_REPR_CHARS = 500
ModelT = TypeVar("ModelT", bound=BaseModel)


def held(value: Any) -> Any:
    """A copy of the value in plain types, each of which can be stored, encoded and sent."""
    return _Conversion().of(value, 0)


def held_messages(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Of a conversation: those that can be held are the same objects, replies with U+0000 among them."""
    return [one if problem_of(one, with_nul=True) is None else held(one) for one in messages]


def held_documents(documents: Iterable[ModelT]) -> list[ModelT]:
    """Likewise of documents in a user's hands."""
    return [_held_document(one) for one in documents]


def _held_document(document: ModelT) -> ModelT:
    values = document.model_dump()
    return document if problem_of(values) is None else type(document)(**held(values))


class _Conversion:
    def __init__(self) -> None:
        self._members = 0

    def of(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | bytes | datetime):
            return value
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, Enum):
            return self.of(value.value, depth)
        if isinstance(value, numbers.Real):
            return _number(value)
        return self._container(value, depth)

    def _container(self, value: Any, depth: int) -> Any:
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            plain = _unpacked(value)
            return _shown(value) if plain is None else self.of(plain, depth)
        if depth >= MAX_DEPTH:
            return f"(nested more than {MAX_DEPTH} levels deep)"
        self._members += len(value)
        if self._members > MAX_MEMBERS:
            return f"(more than {MAX_MEMBERS:,} members)"
        if isinstance(value, Mapping):
            return {_name(name): self.of(one, depth + 1) for name, one in value.items()}
        return [self.of(one, depth + 1) for one in value]


def _text(text: str) -> str:
    return storable(text).replace("\0", "\ufffd")


def _number(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        whole = int(value)
        return whole if -(2**63) <= whole < 2**63 else clipped(_digits(whole), MAX_REPR_CHARS)
    try:
        number = float(value)
    except OverflowError:  # a fraction
        return _shown(value)
    return number if math.isfinite(number) else str(number)


def _digits(whole: int) -> str:
    try:
        return str(whole)
    except ValueError:  # Python writes at most 4,300 decimal digits
        return hex(whole)


def _name(name: Any) -> str:
    return _text(name) if isinstance(name, str) else _shown(name)


def _unpacked(value: Any) -> Any:
    """The list or number in an array or a scalar of numpy or torch; None: it is neither."""
    tolist = getattr(value, "tolist", None)
    if not callable(tolist):
        return None
    try:
        plain = tolist()
    except Exception:  # noqa: BLE001 - another's method may raise anything
        return None
    return None if plain is value else plain


def _shown(value: Any) -> str:
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - another's `__repr__` may raise anything
        shown = f"<{type(value).__name__}>"
    return _text(clipped(shown, MAX_REPR_CHARS))
