"""Reads an agent's request so that no member of it can be ignored unseen: what is not read is `unused`, by its path.

    body = Fields(json)                              {"model": "main", "text": {"verbosity": "low"}, "seed": 1}
    body.text("model"), body.object("text")
    body.unused()                                    {"text.verbosity": "low", "seed": 1}

All dialects read their bodies through it, at every depth. A member that is null counts as absent; `ignore` names values with
which a member changes nothing. A value of the wrong type is a GatewayError with the member's path.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from sampler.gateway.exchange import GatewayError, Problem
from shared.names import shortened

T = TypeVar("T")
NOTHING: tuple[Any, ...] = (None, "", [], {})  # an unread member with one of these means nothing
Spelling = Callable[[str], Sequence[str]]  # the names under which a client may send a member, the first one for paths


# 25 methods: one for each kind of value that a request may have
class Fields:
    """One JSON object. `path`: its place in the request; `name`: the same without positions, by which unused members are
    counted."""

    def __init__(
        self, value: Mapping[str, Any], path: str = "", name: str = "", spelling: Spelling = lambda name: (name,)
    ) -> None:
        self.path = path
        self._name = name
        self._value = value
        self._spelling = spelling
        self._rest = dict(value)  # what was not read yet
        self._inner: list[Fields] = []

    @classmethod
    def of(cls, body: Any, spelling: Spelling = lambda name: (name,)) -> "Fields":
        """Raises GatewayError unless it is an object."""
        if not isinstance(body, Mapping):
            raise GatewayError(Problem.INVALID, f"the body is {_shown(body)}; expected a JSON object")
        return cls(body, spelling=spelling)

    # ------------------------------------------------------------------ plain members

    def value(self, name: str) -> Any:
        """Anything; None where it is absent or null."""
        for key in self._spelling(name):
            self._rest.pop(key, None)
        return self.peek(name)

    def peek(self, name: str) -> Any:
        """The same, without using it."""
        return next((self._value[key] for key in self._spelling(name) if self._value.get(key) is not None), None)

    def text(self, name: str, default: str = "") -> str:
        return self._typed(name, str, "a text") or default

    def needed_text(self, name: str) -> str:
        value = self.text(name)
        if not value:
            self.fail(name, "is missing; expected a text")
        return value

    def flag(self, name: str) -> bool:
        return self._typed(name, bool, "true or false") or False

    def whole(self, name: str, least: int = 1) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        if value != int(value) or value < least:
            self.fail(name, f"is {_shown(value)}; expected a whole number from {least}")
        return int(value)

    def number(self, name: str) -> float | int | None:
        given = self.value(name)
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
            self.fail(name, f"is {_shown(given)}; expected a number")
        return given

    def texts(self, name: str) -> list[str]:
        """A text, or a list of texts."""
        given = self.value(name)
        listed = [given] if isinstance(given, str) else [] if given is None else given
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            self.fail(name, f"is {_shown(given)}; expected a text or a list of texts")
        return listed

    def opaque(self, name: str) -> dict[str, Any] | None:
        """An object whose members all are used, of any name: a schema, arguments."""
        return self._typed(name, dict, "an object")

    # ------------------------------------------------------------------ objects in it

    def object(self, name: str) -> "Fields | None":
        value = self.opaque(name)
        return None if value is None else self._within(value, name)

    def objects(self, name: str) -> list["Fields"]:
        """A list of objects; empty where it is absent."""
        values = self._typed(name, list, "a list of objects") or []
        for at, one in enumerate(values):
            if not isinstance(one, Mapping):
                self.fail(f"{name}[{at}]", f"is {_shown(one)}; expected an object")
        return [self._within(one, name, at) for at, one in enumerate(values)]

    def text_or_objects(self, name: str) -> "str | list[Fields]":
        """Empty text where it is absent."""
        value = self.peek(name)
        if value is None or isinstance(value, str):
            return self.text(name)
        if not isinstance(value, list):
            self.fail(name, f"is {_shown(value)}; expected a text or a list of objects")
        return self.objects(name)

    # ------------------------------------------------------------------ what is not used

    def ignore(self, name: str, *values: Any) -> None:
        """With one of these values the member changes nothing; with any other it stays unused."""
        for key in self._spelling(name):
            if any(self._rest.get(key) == value and type(self._rest.get(key)) is type(value) for value in values):
                del self._rest[key]

    @property
    def names(self) -> list[str]:
        """Of all members that are not null."""
        return [self._spelling(name)[0] for name, value in self._value.items() if value is not None]

    def use_all(self) -> None:
        """None of its members is unused: the whole object is, and is counted under a name of its own."""
        self._rest, self._inner = {}, []

    def leave(self, name: str, value: Any) -> None:
        """This much of a member that was read is unused."""
        self._rest[name] = value

    def echo(self, *names: str) -> None:
        """Members that this gateway itself wrote into a reply, and that say nothing to it when they come back."""
        for name in names:
            self.value(name)

    def unused(self) -> dict[str, Any]:
        """By path without positions: `tools[].strict`."""
        values = dict(self._unused())
        return {name: values[name] for name in sorted(values)}

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raises GatewayError."""
        raise GatewayError(Problem.INVALID, f"{self.path_of(name)} {problem}")

    def path_of(self, name: str) -> str:
        spelled = self._spelling(name)[0] if name else ""
        return f"{self.path}.{spelled}" if self.path and spelled else self.path or spelled

    # ------------------------------------------------------------------ inside

    def _unused(self) -> Iterator[tuple[str, Any]]:
        for name, value in self._rest.items():
            if value not in NOTHING:
                yield f"{self._name}{self._spelling(name)[0]}", value
        for one in self._inner:
            yield from one._unused()

    def _typed(self, name: str, kind: type[T], expected: str) -> T | None:
        given = self.value(name)
        if given is not None and not isinstance(given, kind):
            self.fail(name, f"is {_shown(given)}; expected {expected}")
        return given

    def _within(self, value: Mapping[str, Any], name: str, at: int | None = None) -> "Fields":
        spelled = self._spelling(name)[0]
        place = spelled if at is None else f"{spelled}[{at}]"
        path = f"{self.path}.{place}" if self.path else place
        counted = f"{self._name}{spelled}{'' if at is None else '[]'}."
        one = Fields(value, path, counted, self._spelling)
        self._inner.append(one)
        return one


def _shown(value: Any) -> str:
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else shortened(value)
