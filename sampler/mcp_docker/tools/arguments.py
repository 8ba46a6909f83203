"""Arguments of bundled tools: a class with annotated fields, shown as a JSON schema, and checked.

pydantic would do it too, but a session is a fork of a process that has it loaded: 29 MB instead of 12, and 2 ms of processor time
instead of 1 to fork and end. `tests/sampler/mcp_docker/test_bundled_arguments.py` compares the two.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

_REQUIRED = object()
_NAMES = {str: "string", int: "integer", float: "number"}


class WrongArguments(ValueError):
    """The message names the field."""


class ArgumentRule(NamedTuple):
    default: Any
    schema: dict[str, Any]  # what JSON Schema says of it, but for the type


# 7 parameters: pydantic's bounds of a field, all optional
def argument(
    default: Any = _REQUIRED,
    *,
    description: str = "",
    min_length: int | None = None,
    max_length: int | None = None,
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
) -> Any:
    """A field. Without a default it is required."""
    known = {
        "description": description or None,
        "minLength": min_length,
        "maxLength": max_length,
        "exclusiveMinimum": gt,
        "minimum": ge,
        "maximum": le,
    }
    schema = {key: value for key, value in known.items() if value is not None}
    return ArgumentRule(default, schema if default is _REQUIRED else {**schema, "default": default})


class ToolArguments:
    """Of one tool; its fields' descriptions are what the model reads. Fields are of type str, int or float."""

    json_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
    _fields: ClassVar[dict[str, tuple[type, ArgumentRule]]] = {}

    def __init_subclass__(cls) -> None:
        cls._fields = {name: (kind, getattr(cls, name)) for name, kind in cls.__annotations__.items()}
        properties = {name: {**rule.schema, "type": _NAMES[kind]} for name, (kind, rule) in cls._fields.items()}
        required = [name for name, (_, rule) in cls._fields.items() if rule.default is _REQUIRED]
        cls.json_schema = {**ToolArguments.json_schema, "properties": properties, "required": required}

    def __init__(self, /, **values: Any) -> None:
        """Raises WrongArguments."""
        for name, (kind, rule) in self._fields.items():
            setattr(self, name, _checked(name, kind, rule, values))
        for name in values.keys() - self._fields.keys():
            raise WrongArguments(
                f"{name[:200]}: there is no such argument; expected {', '.join(self._fields) or 'none'}"
            )


def _checked(name: str, kind: type, rule: ArgumentRule, values: Mapping[str, Any]) -> Any:
    if name not in values:
        if rule.default is _REQUIRED:
            raise WrongArguments(f"{name}: Field required")
        return rule.default
    try:
        value = _READ[kind](values[name])
    except (TypeError, ValueError, OverflowError) as exc:
        raise WrongArguments(f"{name}: Input should be a valid {_NAMES[kind]}") from exc
    for key, test, words in _TESTS:
        if key in rule.schema and not test(value, rule.schema[key]):
            raise WrongArguments(f"{name}: Input should {words} {rule.schema[key]}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # no half of a surrogate pair
    return value


def _integer(value: Any) -> int:
    """Models write 5 as "5" and 5.0, too."""
    if isinstance(value, int):
        return int(value)
    number = _number(value)
    if not number.is_integer():
        raise ValueError
    return int(value) if isinstance(value, str) and "." not in value else int(number)


def _number(value: Any) -> float:
    if not isinstance(value, str | int | float):
        raise TypeError
    return float(value)


_READ: dict[type, Callable[[Any], Any]] = {str: _text, int: _integer, float: _number}
_TESTS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minLength", lambda value, bound: len(value) >= bound, "have at least this many characters:"),
    ("maxLength", lambda value, bound: len(value) <= bound, "have at most this many characters:"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "be greater than"),
    ("minimum", lambda value, bound: value >= bound, "be at least"),
    ("maximum", lambda value, bound: value <= bound, "be at most"),
)
