"""Functions by the name that a setting selects them by: bundled ones, and a user's own from modules that another setting names.

Losses, advantage estimators and batch normalizations have a table each. A mistake in a user's function is `OwnCodeFailed`, which
names its line; bundled functions are called as they are.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.errors import ConfigError, OwnCodeFailed
from shared.names import shortened
from shared.user_code.frames import definition_of, is_ours, told
from shared.user_code.loading import import_own

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RegisteredFunction(Generic[F]):
    """`traits`: what its decorator said of it."""

    function: F
    traits: frozenset[str]


class FunctionRegistry(Generic[F]):
    """`kind`: what messages call a function. `modules`: the setting that names modules to import; they use `@decorator(name)`."""

    def __init__(self, kind: str, *, modules: str, decorator: str) -> None:
        self._kind, self._modules, self._decorator = kind, modules, decorator
        self._known: dict[str, RegisteredFunction[F]] = {}

    def add(self, name: str, function: F, **traits: bool) -> None:
        """Adding the same function again is harmless. Raises ConfigError for another one under a known name."""
        known = self._known.get(name)
        if known is not None and known.function is not function:
            raise ConfigError(f"{self._kind} {name!r} is registered twice; give one of them another name")
        self._known[name] = RegisteredFunction(function, frozenset(trait for trait, has in traits.items() if has))

    def has(self, name: str, trait: str) -> bool:
        return trait in self._known[name].traits

    def import_modules(self, names: Sequence[str]) -> None:
        """Modules that register functions. Raises ConfigError."""
        for name in names:
            import_own(self._modules, name)

    def require(self, name: str, bundled: Sequence[str]) -> None:
        """Raises ConfigError for an unknown name, with the nearest one. `bundled` names are known before their module is."""
        names = list(dict.fromkeys([*map(str, bundled), *self._known]))
        if name in names:
            return
        lower = {known.lower(): known for known in names}
        close = difflib.get_close_matches(name.lower(), lower, n=1)
        nearest = f'did you mean "{lower[close[0]]}"? ' if close else ""
        raise ConfigError(
            f"{self._kind} {shortened(name)} is unknown; {nearest}Expected one of {', '.join(names)}, or a name that a module of "
            f"{self._modules} registers with @{self._decorator}"
        )

    def call(self, name: str, problem: Callable[[Any], str], *arguments: Any) -> Any:
        """The function's result. Raises OwnCodeFailed for an error in a user's, or what `problem` says of it."""
        function = self._known[name].function
        if is_ours(function):
            return function(*arguments)
        try:
            value = function(*arguments)
        except Exception as exc:  # the user's code: what it raises is shown with its line
            raise OwnCodeFailed(f"{self._kind} {name!r} failed: {told(exc, function)}") from exc
        wrong = problem(value)
        if wrong:
            raise OwnCodeFailed(f"{self._kind} {name!r} {wrong}{definition_of(function)}")
        return value
