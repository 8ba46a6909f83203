"""What is wrong with a service's values, one line each: where it was given, the setting as it was written there, what was found,
and what is expected.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from shared.configuration.file_section import FileSection
from shared.configuration.secrets import DATABASE, DATABASE_VARIABLE, is_secret
from shared.configuration.sections import flattened, located, others_in_section, settings_of, written_as
from shared.configuration.sources import without_empty
from shared.configuration.typed_values import Misread
from shared.names import cut, shortened
from shared.redaction import redacted

LONGEST_MESSAGE = 1_000  # characters of one error: a rule may quote a value of any length
Sources = Mapping[str, dict[str, Any]]  # {its name: what it gives}


def explained(
    wrong: ValidationError, cls: type[BaseModel], sources: Sources, merged: Mapping[str, Any], besides: Collection[str]
) -> list[str]:
    """One line for each value, of settings not in `besides`; of one of several types, with what each of them expects."""
    lines: dict[tuple[Any, ...], list[str]] = {}
    for error in wrong.errors():
        name, inside = located(cls, error["loc"])
        while (
            inside and not _has(merged.get(name or ""), inside) and error["type"] not in ("missing", "extra_forbidden")
        ):
            inside = inside[:-1]  # pydantic's name for one of several types
        if name in besides or (besides and name is None):  # a rule between settings may be broken by what was misread
            continue
        key = (name, inside, error["type"] == "missing", None if name else error["msg"])
        message = redacted(cut(str(error["msg"]).removeprefix("Value error, "), LONGEST_MESSAGE))
        if key in lines:
            lines[key].append(message)
        else:
            lines[key] = [_explain(error, name, inside, message, cls, sources)]
    return [" or ".join(parts) for parts in lines.values()]


def _has(value: Any, place: Sequence[str | int]) -> bool:
    for part in place:
        known = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
        if part not in known:
            return False
        value = value[part]
    return True


def given_in(cls: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """{setting: as it was written} of one source, without what is empty. Raises ConfigError for an empty secret."""
    whole = values.written if isinstance(values, FileSection) else values
    return without_empty(cls, flattened(cls, whole))


def misread_text(misread: Misread, cls: type[BaseModel], sources: Sources, name: str) -> str:
    where, path = _place(cls, sources, name, misread.place)
    shown = "" if is_secret(cls, name) else f" is {redacted(misread.found)}"
    return f"{where}{path}{shown}; expected {misread.expected}"


def _explain(
    error: Any, name: str | None, inside: Sequence[str | int], message: str, cls: type[BaseModel], sources: Sources
) -> str:
    if name is None:
        return f"{_place_of_a_rule(cls, sources, message)}{message}"
    where, path = _place(cls, sources, name, inside)
    if error["type"] == "missing" and not inside:
        return f"{path} is missing{_what_needs(cls, name, sources)}: give it {_given_as(cls, name)} or in the YAML file"
    hidden = isinstance(error["input"], dict) or is_secret(cls, name)
    actual = "" if hidden else f" is {redacted(shortened(error['input']))}"
    return f"{where}{path}{actual}; {message}"


def _place(cls: type[BaseModel], sources: Sources, name: str, inside: Sequence[str | int]) -> tuple[str, str]:
    """(where a setting was given: `flags: `, `run.yml:3: `; the setting as it was written there, with the place inside)."""
    for source, values in sources.items():
        written = written_as(cls, values, name) if name in given_in(cls, values) else None
        if written:
            path = ".".join(map(str, (written, *inside)))
            if isinstance(values, FileSection):
                return f"{values.at((*written.split('.'), *inside))}: ", path
            return f"{source}: ", path
    return "", ".".join(map(str, (name, *inside)))


def _place_of_a_rule(cls: type[BaseModel], sources: Mapping[str, dict[str, Any]], message: str) -> str:
    """Of a rule between settings: the line of the first that it names and a file gives."""
    for name in re.findall(r"[a-z][a-z0-9_]*", message.lower()):
        where = _place(cls, sources, name, ())[0] if name in settings_of(cls) else ""
        if where and where[:-2] not in sources:
            return where
    return ""


def _given_as(cls: type[BaseModel], name: str) -> str:
    if name == DATABASE and settings_of(cls)[name].required:
        return f"in the environment, as {DATABASE_VARIABLE},"
    return f"as --{name}, in the environment,"


def _what_needs(cls: type[BaseModel], name: str, sources: Sources) -> str:
    """What of the same optional section is given: without it, the setting would not be missing."""
    if name not in settings_of(cls) or not settings_of(cls)[name].optional:
        return ""
    others = sorted(
        others_in_section(cls, name) & {given for values in sources.values() for given in flattened(cls, values)}
    )
    return f", which {', '.join(others)} needs" if others else ""
