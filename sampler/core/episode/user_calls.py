"""Calls a method of a user's own sampler: checks the return values, and names the source line of a mistake.

my_pkg.samplers:Walker.run returned 'done'; expected a Termination; at my_pkg/samplers.py:9: async def run(self):
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.errors import OwnCodeFailed
from shared.outside_text import clipped
from shared.user_code.frames import cause_of, definition_of, name_of

T = TypeVar("T")

MAX_SHOWN_CHARS = 200  # shown of a wrong return value


async def call_user_code(method: Callable[[], Awaitable[T]], kind: type[T], expected: str) -> T:
    """Return the method's result, checked to be a `kind`. Raises OwnCodeFailed; unwraps an exception group first."""
    try:
        answer = method()
        if not inspect.isawaitable(answer):
            raise OwnCodeFailed(f"{name_of(method)} is not an async function: write async def{definition_of(method)}")
        value = await answer
    except BaseExceptionGroup as group:  # from the user's TaskGroup: report the single mistake in it
        raise cause_of(group) from group
    if not isinstance(value, kind):
        shown = clipped(repr(value), MAX_SHOWN_CHARS)
        raise OwnCodeFailed(f"{name_of(method)} returned {shown}; expected {expected}{definition_of(method)}")
    return value
