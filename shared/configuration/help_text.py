"""What `--help` prints: on one screen what most people set; `--help SECTION` and `--help all` have the rest.

A service's `most_set` names the settings of the first screen.
"""

import enum
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shared.configuration.sections import Setting, settings_of

WIDTH = 110
ALL = "all"
GENERAL = "general"
FLAGS = ("--help", "-h")
LONGEST_DEFAULT = 60
LEFT_COLUMN = 36
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤", "min_length": "length ≥", "max_length": "length ≤"}


def print_help(cls: type[BaseModel], argv: Sequence[str]) -> None:
    """Nothing where `--help` is not among the words; else ends the program, with 2 for a section that there is not."""
    at = next((index for index, word in enumerate(argv) if word in FLAGS), None)
    if at is None:
        return
    topic = next((word for word in argv[at + 1 : at + 2] if not word.startswith("-")), "")
    known = [*by_section(cls), *_topics(cls), ALL]
    if topic and topic not in known:
        _exit(f"{_program(cls)}: --help {topic}: no such section; expected one of {', '.join(known)}")
    sys.stdout.write(help_text(cls, topic))
    raise SystemExit(0)


def help_text(cls: type[BaseModel], topic: str = "") -> str:
    """`topic`: a section, "all", or empty: the first screen."""
    if topic in _topics(cls):
        return _topics(cls)[topic].rstrip() + "\n"
    if topic == ALL:
        parts = [*_head(cls), *(line for section in by_section(cls) for line in _whole(cls, section))]
    elif topic:
        parts = _whole(cls, topic)
    else:
        parts = _screen(cls)
    return "\n".join(parts).rstrip() + "\n"


def by_section(cls: type[BaseModel]) -> Mapping[str, Mapping[str, Setting]]:
    """{section: {name: setting}}; the general ones first."""
    settings_by_section: dict[str, dict[str, Setting]] = {GENERAL: {}}
    for name, setting in settings_of(cls).items():
        section = setting.path[0] if len(setting.path) > 1 else GENERAL
        settings_by_section.setdefault(section, {})[name] = setting
    return {section: settings for section, settings in settings_by_section.items() if settings}


def _program(cls: type[BaseModel]) -> str:
    return str(getattr(cls, "program", "") or getattr(cls, "section", "") or cls.__name__)


def _topics(cls: type[BaseModel]) -> Mapping[str, str]:
    topics: Mapping[str, str] = getattr(cls, "help_topics", {})
    return topics


# ---------------------------------------------------------------------- the first screen


def _head(cls: type[BaseModel]) -> list[str]:
    usage = getattr(cls, "usage", "") or "[--config FILE.yml] [--setting value ...]"
    about = textwrap.wrap(str(getattr(cls, "about", "")), WIDTH)
    example = getattr(cls, "example", "")
    shown = textwrap.wrap(f"usage: {_program(cls)} {usage}", WIDTH, subsequent_indent=" " * 8)
    return [*shown, "", *about, *(["", f"  {example}"] if example else []), ""]


def _screen(cls: type[BaseModel]) -> list[str]:
    sections, chosen = by_section(cls), getattr(cls, "most_set", ())
    if not chosen:
        return [*_head(cls), *(line for section in sections for line in _whole(cls, section))]
    lines = [*_head(cls), "What most people set:"]
    for name in chosen:
        lines.append(_line(name, settings_of(cls)[name]))
    total = sum(map(len, sections.values()))
    counts = ", ".join(f"{section} {len(settings)}" for section, settings in sections.items())
    topics = "".join(f"; --help {topic}: more on how to start it" for topic in _topics(cls))
    end = (
        f"All {total} settings: --help all; of one section: --help SECTION; as a page: docs/reference/settings.md{topics}. "
        f"Sections: {counts}. Each setting is also a key of the YAML file and a variable, "
        f"TANDEM_{str(getattr(cls, 'section', '')).upper()}_NAME."
    )
    return [*lines, "", *textwrap.wrap(end, WIDTH)]


def _line(name: str, setting: Setting) -> str:
    given = "(required)" if setting.required else _default(setting.field)
    flag = f"  --{name} {given}"
    meaning = " ".join((setting.field.description or "").split())
    return f"{flag:<{LEFT_COLUMN}} {textwrap.shorten(meaning, WIDTH - LEFT_COLUMN - 1, placeholder=' …')}"


# ---------------------------------------------------------------------- a section


def _whole(cls: type[BaseModel], section: str) -> list[str]:
    lines = [f"{section}:"]
    for name, setting in by_section(cls)[section].items():
        lines += _setting(name, setting)
    return [*lines, ""]


def _setting(name: str, setting: Setting) -> Iterator[str]:
    default = "required" if setting.required else f"default: {_default(setting.field)}"
    yield f"  --{name} {kind_text(setting.field)} ({default})"
    yield from textwrap.wrap(
        " ".join((setting.field.description or "").split()), WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6
    )


def _default(field: FieldInfo) -> str:
    return "none" if field.is_required() else value_text(field.get_default(call_default_factory=True))


# ---------------------------------------------------------------------- types and values, also of the page of settings


def kind_text(field: FieldInfo) -> str:
    """The type in words of the YAML file, with its bounds."""
    bounds = [
        f"{sign} {getattr(part, key):g}"
        for part in field.metadata
        for key, sign in _SIGNS.items()
        if getattr(part, key, None) is not None
    ]
    return ", ".join([type_text(field.annotation), *bounds])


def type_text(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(part) for part in inside)
    if origin is Literal:
        return ", ".join(sorted(map(str, inside)))  # typing keeps equal ones once, in the order of the first
    if origin in (list, tuple, dict):
        return f"{'mapping' if origin is dict else 'list'} of {type_text(inside[-1] if origin is dict else inside[0])}"
    if origin is not None:  # Annotated
        return type_text(inside[0])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(str(member.value) for member in kind)
    names = {
        "str": "text",
        "Path": "path",
        "bool": "true or false",
        "int": "integer",
        "float": "number",
        "NoneType": "none",
    }
    name = getattr(kind, "__name__", str(kind))
    return names.get(name, name)


def value_text(value: Any) -> str:
    words = {None: "none", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return words[value]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_DEFAULT else f"{text[:LONGEST_DEFAULT]}…"


def _exit(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise SystemExit(2)
