"""Checks of every configuration value: documents, file names and timers must be able to represent it."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from shared.names import shortened

LONGEST_S = 1e8  # three years; timers of threads and stored times overflow above
LONGEST_PATH, LONGEST_PART = 2048, 255  # bytes; Linux allows 4096 for the whole path
DEEPEST, MOST_VALUES = 20, 100_000  # a document may be 100 levels deep
WHOLE = 2**63
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # in a normalised path, "//" has become "/"


def problems_of(values: Mapping[str, object], *, of_shape: bool = False) -> Iterator[tuple[str, str, str]]:
    """Yield (field, found, expected) for each unusable value; `of_shape`: for each that is nested or repeated too deeply."""
    for name, value in values.items():
        problem = _problem(value, name.endswith("_s"), [MOST_VALUES], 0, of_shape)
        if problem:
            yield name, *problem


def _problem(value: object, seconds: bool, budget: list[int], depth: int, of_shape: bool) -> tuple[str, str] | None:
    budget[0] -= 1
    if isinstance(value, dict | list | tuple | set | frozenset):
        if depth >= DEEPEST or budget[0] < 0:  # a YAML anchor may contain itself, or a million others
            return "nested or repeated too deeply", f"at most {DEEPEST} levels and {MOST_VALUES} values"
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        return next(filter(None, (_problem(part, seconds, budget, depth + 1, of_shape) for part in parts)), None)
    if of_shape:
        return None
    if isinstance(value, Path) and _URL.match(str(value)):
        return "a URL", "a path"  # not quoted: it may contain a password
    expected = _expected(value, seconds)
    return None if expected is None else (shortened(str(value) if isinstance(value, Path) else value), expected)


def _expected(value: object, seconds: bool) -> str | None:
    """What is expected instead of a single value; None: it is valid."""
    if isinstance(value, Path):
        return _text(str(value)) or _path(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if isinstance(value, int) and not -WHOLE <= value < WHOLE:
        return "a number of 64 bits"
    if seconds and isinstance(value, int | float) and value > LONGEST_S:
        return f"at most {LONGEST_S:g} seconds"
    return None


def _text(value: str) -> str | None:
    if "\0" in value:
        return "text without a NUL character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "UTF-8"
    return None


def _path(value: Path) -> str | None:
    if len(os.fsencode(value)) > LONGEST_PATH or any(len(os.fsencode(part)) > LONGEST_PART for part in value.parts):
        return f"a path of at most {LONGEST_PATH} bytes, and {LONGEST_PART} in each part"
    return None
