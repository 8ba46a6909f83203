"""Checks the values of an engine's reply one by one; EngineContractBroken names an invalid field.

JSON types are loose: `1.0`, `true`, `"1"` and a number of thirty digits all pass through `int()`, and a value that MongoDB or a
trainer's array cannot hold fails much later, in another process. `where` names the engine and the request.
"""

from collections.abc import Mapping
from typing import Any

from sampler.core.errors import EngineContractBroken

MAX_SHOWN_CHARS = 120
MAX_INT32 = 2**31 - 1
MAX_EXACT = 2**53  # beyond it a JSON number may have lost digits


def shown(value: object) -> str:
    """A value for a message, shortened: an engine's reply may have any size."""
    text = repr(value[:MAX_SHOWN_CHARS] if isinstance(value, str | list | tuple) else value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"


def broken(where: str, field: str, value: object, expected: str) -> EngineContractBroken:
    return EngineContractBroken(f"{where}: {field} is {shown(value)}; expected {expected}")


def whole(where: str, field: str, value: object, *, least: int = 0, most: int = MAX_EXACT) -> int:
    """A whole number, not a float or a boolean."""
    if type(value) is not int or not least <= value <= most:
        raise broken(where, field, value, f"a whole number from {least} to {most}")
    return value


def number(where: str, field: str, value: object) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_EXACT <= value <= MAX_EXACT:
        raise broken(where, field, value, "a finite number")
    return float(value)


def text(where: str, field: str, value: object) -> str:
    if not isinstance(value, str):
        raise broken(where, field, value, "a text")
    return value


def mapping(where: str, field: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise broken(where, field, value, "a JSON object")
    return value


def listed(where: str, field: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise broken(where, field, value, "a JSON array")
    return value
