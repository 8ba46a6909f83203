"""Reads each value as what it looks like, for the type of its setting: the same from a flag, a variable and a YAML file.

    number      decimal digits: 8, -0.5, 1e-6, 1_000. Not true, yes, 010 (8 in YAML 1.1), 1:30 (90), 0x10
    truth value true, false, yes, no, on, off, 1, 0
    text        as it is written, also where it looks like a number: run: 010
    none        of a setting that may be none: none, None, null
    path        ~ is the home folder
    list        also as text, separated by commas
    anything    (a variable of a chat template) as YAML 1.2 reads it; what YAML 1.1 reads otherwise is refused

Whatever else does not fit stays as it is, for pydantic to refuse.
"""

import math
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shared.errors import ConfigError
from shared.files.yaml_file import Scalar, plain
from shared.names import shortened

NONE = ("none", "None", "NONE", "null", "Null", "NULL")
_TRUTHS = {word: True for word in ("true", "yes", "on", "1", "y", "t")} | {
    word: False for word in ("false", "no", "off", "0", "n", "f")
}
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SEPARATED = re.compile(r"(?<=[0-9])_(?=[0-9])")
LARGEST_EXPONENT = 400  # floats end at 308

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Misread:
    """A value that would not mean what it looks like. `place`: inside of the setting's value."""

    place: Place
    found: str
    expected: str


def typed(kind: Any, written: Any, *, may_be_none: bool = False) -> tuple[Any, list[Misread]]:
    """The value for a setting of type `kind`, with plain values for every `Scalar`, and what is refused of it.

    `written` is no deeper and no longer than `problems_of(…, of_shape=True)` allows: an anchor may contain itself.
    """
    refused: list[Misread] = []
    return _typed(kind, written, (), refused, may_be_none), refused


def typed_model(model: type[BaseModel], written: Mapping[str, Any]) -> tuple[dict[str, Any], list[Misread]]:
    """The same for the fields of a model."""
    refused: list[Misread] = []
    return _members(model, written, (), refused), refused


def is_empty(written: Any) -> bool:
    """Nothing but blanks, or nothing at all behind a key: as if it was not given."""
    text = written.text if isinstance(written, Scalar) else written
    return isinstance(text, str) and not text.strip()


def _typed(kind: Any, written: Any, place: Place, refused: list[Misread], may_be_none: bool = False) -> Any:
    kinds = list(_alternatives(kind))
    if isinstance(written, list):
        return [_typed(_item(kinds, at), one, (*place, at), refused) for at, one in enumerate(written)]
    if isinstance(written, dict):
        return _mapping(kinds, written, place, refused)
    text = written.text if isinstance(written, Scalar) else written
    if not isinstance(text, str):
        return _not_text(kinds, text, place, refused)
    if isinstance(written, Scalar) and text == "~" and Path in kinds:
        refused.append(Misread(place, text, "'~', in quotes, for the home folder; none for no path"))
        return None
    if (type(None) in kinds or may_be_none) and _is_none(kinds, written):
        return None
    return _from_text(kinds, written, text, place, refused)


def takes(kind: Any, *origins: type) -> bool:
    """Is one of the types that a value may have a `list`, say, or a model (`BaseModel`)?"""
    origins_of = [get_origin(one) or one for one in (kind if isinstance(kind, list) else _alternatives(kind))]
    return any(isinstance(one, type) and issubclass(one, origins) for one in origins_of)


def model_in(kind: Any) -> type[BaseModel] | None:
    """The model among the types that a value may have."""
    models = (one for one in _alternatives(kind) if isinstance(one, type) and issubclass(one, BaseModel))
    return next(models, None)


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types that a value may have, without annotations; a choice is its `Literal`."""
    origin = get_origin(kind)
    if origin is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind


def _choices(kinds: list[Any]) -> list[Any]:
    """Values that a choice takes, each as itself."""
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return literals + [one.value for kind in _enums(kinds) for one in kind]


def _enums(kinds: list[Any]) -> list[type[Enum]]:
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]


def _item(kinds: list[Any], at: int) -> Any:
    for kind in kinds:
        origin, inside = get_origin(kind), get_args(kind)
        if origin in (list, set, frozenset) and inside:
            return inside[0]
        if origin is tuple and inside:
            return inside[0] if inside[-1] is Ellipsis else inside[min(at, len(inside) - 1)]
    return Any


def _mapping(kinds: list[Any], written: Mapping[str, Any], place: Place, refused: list[Misread]) -> dict[str, Any]:
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return _members(kind, written, place, refused)
    value_kind = next((get_args(kind)[1] for kind in kinds if get_origin(kind) is dict), Any)
    return {name: _typed(value_kind, one, (*place, name), refused) for name, one in written.items()}


def _members(
    model: type[BaseModel], written: Mapping[str, Any], place: Place, refused: list[Misread]
) -> dict[str, Any]:
    fields = _fields(model)
    return {
        name: _typed(fields[name].annotation if name in fields else Any, one, (*place, name), refused)
        for name, one in written.items()
    }


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """By every name that the model reads them from."""
    by_name = dict(model.model_fields)
    for field in model.model_fields.values():
        choices = getattr(field.validation_alias, "choices", [field.validation_alias])
        by_name |= {name: field for name in (*choices, field.alias) if isinstance(name, str)}
    return by_name


def _not_text(kinds: list[Any], value: Any, place: Place, refused: list[Misread]) -> Any:
    """A value of JSON or of Python."""
    numbers = {int, float} & set(kinds)
    if isinstance(value, bool) and numbers and bool not in kinds and value not in _same(_choices(kinds), bool):
        refused.append(Misread(place, str(value).lower(), f"{_a_number(kinds)}, not a truth value"))
    elif isinstance(value, int | float) and not isinstance(value, bool) and bool in kinds and not numbers:
        if value in (0, 1) and isinstance(value, int):
            return bool(value)
        refused.append(Misread(place, str(value), "true or false, not a number"))
    return value


def _same(values: list[Any], kind: type) -> list[Any]:
    return [value for value in values if isinstance(value, kind)]


def _is_none(kinds: list[Any], written: Scalar | str) -> bool:
    """`null` always; `none` where it is no choice of the setting or of its list."""
    text = written.text if isinstance(written, Scalar) else written
    if isinstance(written, Scalar) and written.value is None:
        return True
    inside = list(_alternatives(_item(kinds, 0)))
    return text in NONE and text not in _choices([*kinds, *inside])


def _from_text(kinds: list[Any], written: Scalar | str, text: str, place: Place, refused: list[Misread]) -> Any:
    chosen = _chosen(kinds, written, text)
    if chosen is not None:
        return chosen
    if {int, float} & set(kinds):
        return _number_of(kinds, written, text, place, refused)
    if Path in kinds:
        return _home(text, place, refused)
    if takes(kinds, list, tuple) and str not in kinds and not takes(_item(kinds, 0), dict, list, BaseModel):
        parts = [] if is_empty(text) else [part.strip() for part in text.split(",")]
        return [_typed(_item(kinds, at), part, (*place, at), refused) for at, part in enumerate(parts)]
    if isinstance(written, str):
        return written
    if str in kinds or bool in kinds or _choices(kinds):
        return None if written.value is None and str in kinds else text
    if written.trap:
        expected = "true or false, a decimal number, or text in quotes"
        refused.append(Misread(place, f"{text} ({written.trap})", expected))
    return plain(written)


def _chosen(kinds: list[Any], written: Scalar | str, text: str) -> Any:
    """A truth value or the member of a choice; None: it is none. `--help` writes the names of an enumeration."""
    if text in _same(_choices(kinds), str):
        return text
    if bool in kinds and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if isinstance(written, Scalar) and written.value in _same(_choices(kinds), int):
        return written.value
    return next((one.value for kind in _enums(kinds) for one in kind if one.name == text), None)


def _number_of(kinds: list[Any], written: Scalar | str, text: str, place: Place, refused: list[Misread]) -> Any:
    number = _number(kinds, text)
    if number is None and str not in kinds and not _choices(kinds):
        trap = written.trap if isinstance(written, Scalar) else ""
        refused.append(Misread(place, f"{shortened(text)}{f' ({trap})' if trap else ''}", _a_number(kinds)))
    return text if number is None else number


def _number(kinds: list[Any], text: str) -> int | float | None:
    """None: it is no decimal number that the type holds."""
    digits = _SEPARATED.sub("", text.strip())
    if not _NUMBER.fullmatch(digits) or len(digits) > LARGEST_EXPONENT:
        return None
    exact = Decimal(digits)
    if exact and abs(exact.adjusted()) > LARGEST_EXPONENT:
        return None
    if exact == exact.to_integral_value() and (int in kinds or digits.lstrip("+-").isdigit()):
        return int(exact)
    value = float(digits)
    return value if math.isfinite(value) and (value or not exact) else None


def _a_number(kinds: list[Any]) -> str:
    return (
        "a number in decimal digits, such as 0.5 or 1e-6"
        if float in kinds
        else "a whole number in decimal digits, such as 10"
    )


def home_path(text: str) -> Path:
    """The path of a setting that names a file. Raises ConfigError."""
    refused: list[Misread] = []
    path = Path(_home(str(text), (), refused))
    if refused:
        raise ConfigError(f"{refused[0].found}: expected {refused[0].expected}")
    return path


def _home(text: str, place: Place, refused: list[Misread]) -> str:
    try:
        return str(Path(text).expanduser()) if text.startswith("~") else text
    except RuntimeError:
        refused.append(
            Misread(place, text, "a path; there is no such user on this machine, whose home folder it would be")
        )
        return text
