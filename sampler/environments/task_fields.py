"""The fields of a task's `custom_task`, read in one place: what a world does not know, or of another type, is refused.

    given = fields_of(task, options=OBJECT, players=whole(1))        {"players": 2}
                  └─▶ TaskRefused: custom_task has 'option'; expected options, players; did you mean 'options'?
                  └─▶ TaskRefused: players is 'two'; expected a whole number from 1 on

Otherwise another world than the task means would be played. Standard library only, as workers are.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sampler.environments.checked_step import shown
from sampler.environments.environment import TaskRefused

ALIKE = 0.75  # of two names: so alike, one is a slip of the other


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field holds. `expected`: in words."""

    expected: str
    holds: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def whole(least: int) -> FieldType:
    """A whole number from `least` on."""
    return FieldType(f"a whole number from {least} on", lambda value: _is_whole(value) and value >= least)


OBJECT = FieldType("an object: names and values", lambda value: isinstance(value, Mapping))
TEXT = FieldType("text", lambda value: isinstance(value, str))
TEXTS = FieldType(
    "a list of texts",
    lambda value: isinstance(value, list | tuple) and all(isinstance(one, str) for one in value),
)
VALUES = FieldType(
    "a list of texts and numbers",
    lambda value: isinstance(value, list | tuple) and all(isinstance(one, str | int | float) for one in value),
)
OBJECTS = FieldType(
    "a list of objects",
    lambda value: isinstance(value, list | tuple) and all(isinstance(one, Mapping) for one in value),
)


def fields_of(task: Mapping[str, Any], **kinds: FieldType) -> dict[str, Any]:
    """Those that the task gives; null is as if it were not there. Raises TaskRefused."""
    require_known(task, *kinds)
    given = {name: value for name, value in task.items() if value is not None}
    for name, value in given.items():
        if not kinds[name].holds(value):
            raise TaskRefused(f"{name} is {shown(value)}; expected {kinds[name].expected}")
    return given


def require_known(task: Mapping[str, Any], *names: str) -> None:
    """Raises TaskRefused for a field of another name."""
    unknown = sorted(str(name) for name in task if name not in names)
    if unknown:
        raise TaskRefused(f"custom_task has {unknown[0]!r}; expected {', '.join(names)}{meant(unknown[0], names)}")


def meant(name: str, names: tuple[str, ...]) -> str:
    """The name that one is a slip of, as the end of a sentence; empty where there is none."""
    alike = difflib.get_close_matches(name.lower(), names, 1, ALIKE)
    return f"; did you mean {alike[0]!r}?" if alike else ""
