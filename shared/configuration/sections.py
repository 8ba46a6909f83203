"""Sections of a service's settings: `config.optimizer.learning_rate`, written with or without the section's name.

    trainer: {optimizer: {learning_rate: 1.0e-6}}       --optimizer.learning_rate 1e-6
    trainer: {learning_rate: 1.0e-6}                    --learning_rate 1e-6

A setting has one name, which no other section of the service uses; its section says only where it stands. So the short form is
always possible, and both forms mean the same. A section may hold sections.

An optional section (`Section | None`) is on or off by one of its settings, its `switch`, which has no default: `lora_rank: 0` is
`lora: null`. The other settings of a section that is off cannot be read; given to one that is on, they need the switch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from shared.configuration.option_names import unknown_option
from shared.files.yaml_file import Scalar, plain


class Section(BaseModel):
    """Base of a named group of settings. The first line of a subclass's docstring is its title in `--help`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
    switch: ClassVar[tuple[str, Any] | None] = None  # of an optional section: a setting, and its value for "off"
    aliases: ClassVar[Mapping[str, str]] = {}  # {another name that users know: setting}

    @model_validator(mode="before")
    @classmethod
    def short_names_are_put_into_their_sections(cls, values: Any) -> Any:
        return nested(cls, values) if isinstance(values, dict) else values


@dataclass(frozen=True, slots=True)
class Setting:
    """`path`: its sections and its own name, which is the last part; `optional`: one of the sections is."""

    path: tuple[str, ...]
    field: FieldInfo
    optional: bool

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def required(self) -> bool:
        return self.field.is_required() and not self.optional


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field of a model is; None: it is a setting."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


@cache
def sections_of(model: type[BaseModel]) -> Mapping[str, type[Section]]:
    """The sections directly inside a model, by name."""
    kinds = {name: section_of(field) for name, field in model.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if kind}


@cache
def all_sections(model: type[BaseModel]) -> Sequence[type[Section]]:
    """Those inside of sections too."""
    return [one for kind in sections_of(model).values() for one in (kind, *all_sections(kind))]


@cache
def settings_of(model: type[BaseModel]) -> Mapping[str, Setting]:
    """Every setting of a model and its sections, by name, in the order of the fields."""
    settings: dict[str, Setting] = {}
    for name, field in model.model_fields.items():
        kind = section_of(field)
        inner = {name: Setting((), field, False)} if kind is None else settings_of(kind)
        for setting, its in inner.items():
            if setting in settings:
                raise TypeError(
                    f"{model.__name__}: {setting} is in two sections, {settings[setting].dotted} and {name}"
                )
            optional = its.optional or bool(kind and kind.switch)
            settings[setting] = Setting((name, *its.path), its.field, optional)
    return settings


@cache
def spellings(model: type[BaseModel]) -> Mapping[str, str]:
    """{as it may be written: setting}: by its name or an alias, and by each after the names of its sections."""
    return {written: name for name in settings_of(model) for written in spellings_of(model, name)}


@cache
def spellings_of(model: type[BaseModel], name: str) -> Sequence[str]:
    """Of one setting, its own name first."""
    setting = settings_of(model)[name]
    prefix = "".join(f"{section}." for section in setting.path[:-1])
    names = [name, *(alias for alias, meant in _aliases(model).items() if meant == name)]
    return [*names, *(f"{prefix}{one}" for one in names)] if prefix else names


def _aliases(model: type[BaseModel]) -> dict[str, str]:
    own = dict(model.aliases) if issubclass(model, Section) else {}
    return own | {alias: name for kind in sections_of(model).values() for alias, name in _aliases(kind).items()}


def setting_of(model: type[BaseModel], written: str) -> str | None:
    """The setting that is meant, also by the key of one that is a mapping (`eval_sampling.top_p`). None: there is none."""
    base = written.rpartition(".")[0]
    if written in spellings(model) or not base or base in sections_of(model):
        return spellings(model).get(written)
    return setting_of(model, base)


def unknown_name(model: type[BaseModel], name: str, kind: str = "option") -> str:
    """What to say of a name that is no setting: the nearest that are, written in the same way."""
    return unknown_option(name, alike(name, spellings(model)), kind)


def alike(name: str, known: Iterable[str]) -> list[str]:
    """The names that are written as this one is: with sections, or without."""
    return [other for other in known if ("." in other) == ("." in name)]


def flattened(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """{setting: value} of values in every spelling; an unknown name stays as it is.

    Raises ValueError for a section that is no mapping, and for two values of one setting.
    """
    flat: dict[str, Any] = {}
    written: dict[str, str] = {}
    for name, value, where in _leaves(model, values, ""):
        if name in flat and flat[name] != value:
            raise ValueError(
                f"{written[name]} and {where} are one setting, with different values; expected one of them"
            )
        flat[name], written[name] = value, where
    return flat


def written_as(model: type[BaseModel], values: Mapping[str, Any], name: str) -> str | None:
    """How the values spell a setting; None: they do not have it."""
    return next((where for setting, _, where in _leaves(model, values, "") if setting == name), None)


def _leaves(model: type[BaseModel], values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    """(setting, value, as it is written)."""
    for name, value in values.items():
        kind = sections_of(model).get(name)
        where = f"{prefix}{name}"
        if kind is None or (name in settings_of(model) and not isinstance(value, dict | Section)):
            yield spellings(model).get(name, where), value, where
        elif isinstance(value, Section):
            yield from ((inner, value, where) for inner, value in flat_values(value).items())
        elif isinstance(value, dict):
            yield from _leaves(kind, value, f"{where}.")
        elif isinstance(value, Scalar) and not value.text:
            continue
        elif plain(value) is None and kind.switch is not None:
            yield *kind.switch, where
        else:
            raise ValueError(f"{where}: found {type(plain(value)).__name__}; expected settings and their values")


def located(model: type[BaseModel], place: Sequence[str | int]) -> tuple[str | None, tuple[str | int, ...]]:
    """The setting, and the place inside its value, that a validation error's `loc` names; (None, ()): a whole section."""
    for depth, name in enumerate(place):
        kind = sections_of(model).get(str(name))
        if kind is None:
            return str(name), tuple(place[depth + 1 :])
        model = kind
    return None, ()


def place_text(model: type[BaseModel], place: Sequence[str | int]) -> str:
    """The same in words: the setting's own name, and what lies inside its value."""
    name, inside = located(model, place)
    return ".".join(map(str, place if name is None else (name, *inside)))


def others_in_section(model: type[BaseModel], name: str) -> set[str]:
    """The other settings of a setting's own section, and of those inside of it."""
    settings = settings_of(model)
    place = settings[name].path[:-1]
    return {other for other, setting in settings.items() if setting.path[: len(place)] == place and other != name}


def nested(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with every setting in its section, as the model is validated from."""
    flat = flattened(model, values)
    whole: dict[str, Any] = {}
    for name in [name for name in flat if name not in settings_of(model)]:
        whole[name] = flat.pop(name)
    return whole | _nest(model, flat)


def _nest(model: type[BaseModel], flat: Mapping[str, Any]) -> dict[str, Any]:
    whole = {name: flat[name] for name in model.model_fields.keys() - sections_of(model).keys() if name in flat}
    for name, kind in sections_of(model).items():
        own = {setting: flat[setting] for setting in settings_of(kind) if setting in flat}
        if kind.switch is None:
            whole[name] = _nest(kind, own)
        elif own and not _is_empty(kind, own):
            whole[name] = None if _is_off(own, *kind.switch) else _nest(kind, own)
    return whole


def _is_empty(model: type[Section], own: Mapping[str, Any]) -> bool:
    """Whether all that is given of an optional section is that sections inside of it are off."""
    off = {kind.switch[0] for kind in all_sections(model) if kind.switch and _is_off(own, *kind.switch)}
    return own.keys() <= off


def _is_off(own: Mapping[str, Any], switch: str, off: Any) -> bool:
    """A flag's or a variable's value is text."""
    try:
        return switch in own and bool(TypeAdapter(type(off)).validate_python(own[switch]) == off)
    except ValidationError:
        return False


def flat_values(config: BaseModel) -> dict[str, Any]:
    """{setting: value} of a model; of an optional section that is off, its switch alone."""
    flat: dict[str, Any] = {}
    for name in type(config).model_fields:
        kind, value = sections_of(type(config)).get(name), getattr(config, name)
        if kind is None:
            flat[name] = value
        elif isinstance(value, Section):
            flat |= flat_values(value)
        elif kind.switch is not None:
            flat.update([kind.switch])
    return flat


def value_of(config: BaseModel, name: str) -> Any:
    """Of one setting, in any section. Raises KeyError where its section is off."""
    return flat_values(config)[name]
