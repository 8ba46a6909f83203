"""How a user's own sampler class is called: what it returns is checked, and a mistake of it names its line.

my_pkg.samplers:Walker.run returned 'done'; expected a Termination; at my_pkg/samplers.py:9: async def run(self):
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sampler.resources import Resources
from sampler.sampler import AsyncSampler
from shared.documents import Claim
from shared.errors import OwnCodeFailed
from shared.outside_text import clipped
from shared.user_code.frames import cause_of, definition_of, name_of, own_fault

T = TypeVar("T")

MAX_SHOWN_CHARS = 200  # of what it returned


def new_episode(kind: type[AsyncSampler], resources: Resources, claim: Claim) -> AsyncSampler:
    """Raises OwnCodeFailed where the class's own `__init__` does not work."""
    try:
        return kind(resources, claim)
    except (Exception, SystemExit) as exc:
        fault = own_fault(exc, kind)
        if fault is None:
            raise
        raise fault from exc


async def call_own(method: Callable[[], Awaitable[T]], kind: type[T], expected: str) -> T:
    """What a method of the class returns, which is a `kind`. Raises OwnCodeFailed; of an exception group what it is about."""
    try:
        answer = method()
        if not inspect.isawaitable(answer):
            raise OwnCodeFailed(f"{name_of(method)} is no async function: write async def{definition_of(method)}")
        found = await answer
    except BaseExceptionGroup as group:  # of a TaskGroup of the user's: the one mistake in it is what to tell
        raise cause_of(group) from group
    if not isinstance(found, kind):
        shown = clipped(repr(found), MAX_SHOWN_CHARS)
        raise OwnCodeFailed(f"{name_of(method)} returned {shown}; expected {expected}{definition_of(method)}")
    return found
