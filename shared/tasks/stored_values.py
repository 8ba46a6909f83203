"""Whether MongoDB can store a task, found before the first task of its file is written: its values, its depth and its size."""

from collections.abc import Mapping
from typing import Any

import bson

from shared.outside_values import problem_of

MAX_TASK_BYTES = 8 << 20  # half of MongoDB's limit, which slots and their errors share. A digit takes up to 17 bytes
OF_ANY_DIGITS = ("id", "task_id", "answer")  # a whole number there becomes a text


def value_problem(values: Mapping[str, Any]) -> str | None:
    """Of a line as it was read: a number that no float or no 64 bits hold, a character, a name, the depth."""
    problem = problem_of({name: _without_whole_numbers(name, value) for name, value in values.items()})
    if problem is None:
        return None
    return f'"{problem.path}" {problem.what}' if problem.path else f"the task {problem.what}"


def _without_whole_numbers(name: str, value: Any) -> Any:
    if name not in OF_ANY_DIGITS:
        return value
    if isinstance(value, list):
        return [None if isinstance(one, int) else one for one in value]
    return None if isinstance(value, int) else value


def size_problem(payload: Mapping[str, Any]) -> str | None:
    """Of the fields of a payload whose values can be stored."""
    size = len(bson.encode(payload))
    if size <= MAX_TASK_BYTES:
        return None
    sizes = {name: len(bson.encode({name: value})) for name, value in payload.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f'the task takes {size} bytes in MongoDB, "{largest}" alone {sizes[largest]}; expected at most {MAX_TASK_BYTES}'
    )
