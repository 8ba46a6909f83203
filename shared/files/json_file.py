"""Users' JSON files. A duplicate key in an object is an error: one of the two values would be lost silently."""

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from shared.errors import ConfigError
from shared.files.text_file import read_text_file

_TOKEN = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?P<key>\s*:)?|[{}\[\]]')


class GivenTwice(ValueError):
    """`name` is on `line` and, in the same object, on the earlier `first_line`."""

    def __init__(self, name: str, line: int, first_line: int) -> None:
        super().__init__(f"{name!r} is given again, after line {first_line}; expected it once")
        self.name, self.line, self.first_line = name, line, first_line


def read_json_file(path: Path, expected: str, *, keys_once: bool = True) -> Any:
    """Read the file's value. Raises ConfigError, which contains `expected`, if it cannot be read.

    `keys_once=False` is for files that came with a model: the last of two equal keys counts, as for their producers.
    """
    text = read_text_file(path, expected)
    try:
        return load_json(text) if keys_once else json.loads(text)
    except GivenTwice as exc:
        raise ConfigError(f"{path}:{exc.line}: {exc}") from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from exc


def load_json(
    text: str,
    parse_constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Parse JSON. Raises GivenTwice, or ValueError for invalid JSON. `parse_constant`: `json`'s hook for NaN and infinity;
    `parse_float`: for numbers with a point or an exponent."""
    try:
        return _decoder(parse_constant, parse_float).decode(
            text.removeprefix("\ufeff")
        )  # byte order mark, which some editors write
    except _SomethingTwice:
        raise _second_place(text) from None
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


@cache
def _decoder(parse_constant: Callable[[str], Any] | None, parse_float: Callable[[str], Any] | None) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_object, parse_constant=parse_constant, parse_float=parse_float)


class _SomethingTwice(Exception):
    """A duplicate key; the parser does not provide its position."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _SomethingTwice
    return mapping


def _second_place(text: str) -> GivenTwice:
    """Locate the first duplicate key; the text before it is valid JSON."""
    objects: list[dict[str, int]] = []  # open objects and lists: {key: its line}
    for token in _TOKEN.finditer(text):
        if token["text"] is None:
            if token[0] in "{[":
                objects.append({})
            else:
                objects.pop()
        elif token["key"]:
            name, line = json.loads(token["text"]), text.count("\n", 0, token.start()) + 1
            if name in objects[-1]:
                return GivenTwice(name, line, objects[-1][name])
            objects[-1][name] = line
    raise AssertionError("the parser saw a key twice")
