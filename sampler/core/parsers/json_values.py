"""Reads JSON values from model text, exactly: what a number or an object would lose in Python is an error."""

import json
import math
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any

from shared.outside_values import MAX_DEPTH

_QUOTED_CHARS = 60


def read_json(body: str) -> tuple[Any, str]:
    """(value, ""), or (None, error)."""
    value, end, why = read_json_at(body, len(body) - len(body.lstrip()))
    if not why and body[end:].strip():
        return None, f"Extra data at character {end + 1}"
    return value, why


def read_json_at(text: str, at: int) -> tuple[Any, int, str]:
    """The value that begins exactly at `at`, its end, and the error if there is none."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as exc:
        return None, at, f"{exc.msg} at character {exc.pos - at + 1}"
    except RecursionError:
        return None, at, f"nested more than {MAX_DEPTH} levels deep"
    except ValueError as exc:  # raised by the functions below
        return None, at, str(exc)
    return value, end, ""


def exact_float(digits: str) -> float:
    """The number that `digits` write. Raises ValueError if the nearest 64-bit float is written otherwise."""
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON: found {_shown(digits)}")
    if not _is_written(value, digits):
        raise ValueError(f"a number has more digits than a 64-bit float: found {_shown(digits)}; write it as a string")
    return value


def _is_written(value: float, digits: str) -> bool:
    try:
        return Decimal(repr(value)) == Decimal(digits)
    except InvalidOperation:  # an exponent of 19 digits
        return False


def _shown(digits: str) -> str:
    return digits if len(digits) <= _QUOTED_CHARS else f"{digits[:_QUOTED_CHARS]}…"


def _int64(digits: str) -> int:
    """Larger numbers cannot be stored, and few tools accept them."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
        raise ValueError("a whole number has more than 64 bits; write it as a string")
    return int(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"an object has the name {twice[:_QUOTED_CHARS]!a} more than once")
    return members


_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_int=_int64, parse_float=exact_float, object_pairs_hook=_object
)
