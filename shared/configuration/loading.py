"""Configuration of every service: merges flags over environment over YAML over defaults into one frozen model.

One YAML file may configure all services: each reads the section with its name and knows the names of the others, so
that a misspelt section is an error too. In a run with several policies, `policies` names them, each with its own
values, which override the shared section.

    trainer: {max_steps: 70, learning_rate: 2.0e-4}
    sampler: {max_turns: 4}
    policies: {solver: {}, judge: {trainer: {learning_rate: 1.0e-4}}}

Unknown keys, duplicate keys, missing keys, wrong types and values out of any range stop the start with a message that
names the source (of a file, the line too) and the field. A value means what it looks like, wherever it is given
(`shared.configuration.typed_values`); an empty one is not given.

A secret field (`secret_field`) appears in no message, no `repr` and no document. It is passed in the environment: a flag is
visible in the process list to every user of the machine. `DB_CONNECTION_STRING` is the default connection string of every
service that needs one. `load_or_exit` removes secrets from the environment, so that no child process inherits them.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from shared.configuration.explaining import Sources, explained, given_in, misread_text
from shared.configuration.file_section import FileSection
from shared.configuration.help_text import print_help
from shared.configuration.plain_values import problems_of
from shared.configuration.secrets import forget_secrets, is_secret
from shared.configuration.sections import (
    all_sections,
    flat_values,
    flattened,
    nested,
    settings_of,
    unknown_name,
)
from shared.configuration.sources import command_line_values, given_variables
from shared.configuration.typed_values import Misread, home_path, typed
from shared.errors import ConfigError
from shared.files.yaml_file import Scalar, YamlFile, open_yaml_file
from shared.names import check_name, shortened
from shared.redaction import redacted_values

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
SECTIONS = ("trainer", "sft", "export", "sampler", "keeper", "launch", "verify", "tasks", "mcp", "environments")
POLICIES = "policies"
OF_A_POLICY = ("trainer", "keeper", "launch")  # sections that a policy may have of its own


class ServiceConfig(BaseSettings):
    """Base of every service's configuration. Subclasses set `section` and describe each field for `--help`."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        cli_avoid_json=True,
        cli_implicit_flags=False,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )
    section: ClassVar[str] = ""
    program: ClassVar[str] = ""
    about: ClassVar[str] = ""  # what the program does
    usage: ClassVar[str] = ""
    example: ClassVar[str] = ""
    most_set: ClassVar[tuple[str, ...]] = ()  # settings of the first screen of `--help`
    help_topics: ClassVar[Mapping[str, str]] = {}  # further texts of `--help TOPIC`
    takes_database_variable: ClassVar[bool] = False  # DB_CONNECTION_STRING, also where no connection string is needed

    _sources: dict[str, str] = PrivateAttr({})  # {setting: where it was given}

    config: Path | None = Field(None, description="YAML file; the section with this service's name is read.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load` merges the sources itself, so that an error can name the source

    @model_validator(mode="before")
    @classmethod
    def short_names_are_put_into_their_sections(cls, values: Any) -> Any:
        return nested(cls, values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def values_are_such_as_documents_files_and_clocks_hold(self) -> Self:
        for problem in problems_of(flat_values(self)):
            raise ConfigError(_unusable(problem, type(self), {}))
        return self

    @classmethod
    def load(cls, argv: Sequence[str] | None = None) -> Self:
        """Read flags, environment (`TANDEM_<SECTION>_<FIELD>`) and YAML. Raises ConfigError; `--help` exits."""
        words = list(sys.argv[1:] if argv is None else argv)
        print_help(cls, words)
        flags = _flags(cls, words)
        environment = _variables(cls)
        path = flags.get("config") or environment.get("config")
        sources = {"flags": flags, "environment": environment}
        if path:
            path = home_path(path)
            shared = read_section(path, cls)
            own = _own_section(path, cls, *sources.values(), shared)
            sources |= {f"{path}, {POLICIES}": own, str(path): shared}
        return cls.from_sources(sources)

    @classmethod
    def from_sources(cls, sources: Mapping[str, dict[str, Any]]) -> Self:
        """Merge {source: its values}; the first source with a value wins. Raises ConfigError, which names source and field."""
        merged: dict[str, Any] = {}
        given_by: dict[str, str] = {}
        refused: dict[str, str] = {}
        for source, values in reversed(list(sources.items())):
            try:
                given = given_in(cls, values)
            except ValueError as exc:
                raise ConfigError(f"{source}: {exc}") from exc
            for problem in problems_of(given, of_shape=True):
                raise ConfigError(_unusable(problem, cls, {source: values}))
            for name, written in given.items():
                merged[name], misread = typed(_kind(cls, name), written, may_be_none=_switched_off_by_none(cls, name))
                given_by[name] = source
                refused.pop(name, None)  # of a source that gives way to this one
                if misread:
                    refused[name] = misread_text(misread[0], cls, {source: values}, name)
            for problem in problems_of({name: merged[name] for name in given}):
                raise ConfigError(_unusable(problem, cls, {source: values}))
        try:
            config = cls(**merged)
        except ValidationError as exc:
            lines = explained(exc, cls, sources, merged, [*refused])
            raise ConfigError("\n".join([*refused.values(), *lines])) from exc
        if refused:
            raise ConfigError("\n".join(refused.values()))
        config._sources = given_by
        return config

    def source_of(self, name: str) -> str:
        """Where a setting was given: flags, environment, a file; empty: nowhere."""
        return self._sources.get(name, "")

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """A configuration of these settings alone, which remembers where this one's were given. Raises ValidationError."""
        other = type(self)(**values)
        other._sources = self._sources
        return other

    @classmethod
    def load_or_exit(cls, argv: Sequence[str] | None = None) -> Self:
        """`load` for a `main`: prints the message and exits with status 2 if the configuration is wrong."""
        program = cls.program or cls.section
        try:
            config = cls.load(argv)
        except ConfigError as exc:
            _exit(f"{program}: {exc}")
        for name, switch in config.switched_off().items():
            sys.stderr.write(f"{program}: {name} has no effect: {switch} switches its section off\n")
        forget_secrets()
        return config

    def switched_off(self) -> dict[str, str]:
        """{setting that was given: the switch that is off} of optional sections."""
        values, settings = flat_values(self), settings_of(type(self))
        switches = dict(kind.switch for kind in all_sections(type(self)) if kind.switch is not None)
        off = {
            settings[one].path[:-1]: one for one, value in switches.items() if one in values and values[one] == value
        }
        return {
            name: next(one for place, one in off.items() if settings[name].path[: len(place)] == place)
            for name in self._sources
            if name not in values and name not in switches
        }

    @classmethod
    def given(cls, argv: Sequence[str]) -> dict[str, Any]:
        """What flags and environment say, flags first, not yet checked; the YAML file is not read."""
        return _variables(cls) | _flags(cls, argv)

    def snapshot(self) -> dict[str, Any]:
        """{setting: its plain value}, of all sections, for the run's document, without any secret."""
        values = flattened(type(self), self.model_dump(mode="json"))
        return {name: redacted_values(v) for name, v in values.items() if not is_secret(type(self), name)}

    def secrets(self) -> list[str]:
        """The values that `snapshot` leaves out."""
        return [str(value) for name, value in flat_values(self).items() if value and is_secret(type(self), name)]


def _flags(cls: type[ServiceConfig], argv: Sequence[str]) -> dict[str, Any]:
    with _json_expected("flags"):
        return command_line_values(cls, argv, cls.program or cls.section, cls.section)


def _variables(cls: type[ServiceConfig]) -> dict[str, Any]:
    with _json_expected("environment"):
        return given_variables(cls, cls.section)


@contextmanager
def _json_expected(source: str) -> Iterator[None]:
    try:
        yield
    except SettingsError as exc:  # a list or an object that is no JSON
        raise ConfigError(f"{source}: {exc}; expected JSON") from exc
    except RecursionError as exc:
        raise ConfigError(f"{source}: a value is nested too deeply") from exc


def _kind(cls: type[ServiceConfig], name: str) -> Any:
    return settings_of(cls)[name].field.annotation if name in settings_of(cls) else Any


def _switched_off_by_none(cls: type[ServiceConfig], name: str) -> bool:
    """Of a section that is off without this setting: `data_run: none`."""
    return any(kind.switch == (name, None) for kind in all_sections(cls))


def _unusable(problem: tuple[str, str, str], cls: type[ServiceConfig], sources: Sources) -> str:
    name, actual, expected = problem
    return misread_text(Misread((), actual, expected), cls, sources, name)


def read_section(path: Path, cls: type[ServiceConfig]) -> FileSection:
    """The section of `cls` in a YAML file, with checked keys. Raises ConfigError naming file, section and key."""
    return _checked(_opened(path), (), cls, str(path))


def read_policies(path: Path) -> dict[str, dict[str, Any]]:
    """{policy: its sections} of the YAML file's `policies`; {} without it. Raises ConfigError."""
    given = read_sections(path).get(POLICIES)
    given = {} if given is None else given
    if not isinstance(given, dict) or not all(isinstance(sections, dict | None) for sections in given.values()):
        raise ConfigError(
            f"{path}: {POLICIES}: found {shortened(given)}; expected names, each with its sections or {{}}"
        )
    policies: dict[str, dict[str, Any]] = {str(name): sections or {} for name, sections in given.items()}
    for name, sections in policies.items():
        try:
            check_name("policy", name)
        except ConfigError as exc:
            raise ConfigError(f"{path}: {POLICIES}: {exc}") from exc
        unknown = sorted(map(str, sections.keys() - set(OF_A_POLICY)))
        if unknown:
            raise ConfigError(
                f"{path}: {POLICIES}.{name}: unknown section {unknown[0]!r}; expected one of {', '.join(OF_A_POLICY)}"
            )
        for section, values in sections.items():
            require_keys(values, f"{path}: {POLICIES}.{name}: {section}")
    return policies


def _own_section(path: Path, cls: type[ServiceConfig], *sources: dict[str, Any]) -> FileSection:
    """The policy's values for this service's section. The policy is the one that the first of `sources` names."""
    policies = read_policies(path)
    if not policies or cls.section not in OF_A_POLICY:
        return FileSection({}, {}, None, ())
    default = cls.model_fields["policy"].default
    policy = next(
        (str(given["policy"]) for given in (given_in(cls, one) for one in sources) if "policy" in given), default
    )
    if policy not in policies:
        raise ConfigError(f"{path}: policy is {policy!r}; expected one of its {POLICIES}: {', '.join(policies)}")
    return _checked(_opened(path), (POLICIES, policy), cls, f"{path}: {POLICIES}.{policy}")


def read_sections(path: Path) -> dict[str, Any]:
    """All sections of a YAML file, with checked names. Raises ConfigError."""
    whole = _opened(path).values
    return {} if whole is None else dict(whole)


def _opened(path: Path) -> YamlFile:
    file = open_yaml_file(path)
    whole = {} if file.values is None else file.values
    if not isinstance(whole, dict):
        raise ConfigError(f"{path}: found {type(whole).__name__}; expected sections {', '.join(SECTIONS)}")
    unknown = sorted(map(str, whole.keys() - {*SECTIONS, POLICIES}))
    if unknown:
        line = file.line_of(unknown[:1])
        raise ConfigError(
            f"{path}:{line}: unknown section {unknown[0]!r}; expected one of {', '.join((*SECTIONS, POLICIES))}"
        )
    return file


def _checked(file: YamlFile, place: Sequence[str], cls: type[ServiceConfig], where: str) -> FileSection:
    """The section of `cls` among those at `place`."""
    where = f"{where}: {cls.section}"
    place = (*place, cls.section)
    values, written = file.values, file.written
    for name in place:
        values, written = (values or {}).get(name), ({} if isinstance(written, Scalar) else written or {}).get(name)
    values = require_keys(values, where)
    section = FileSection(values, written if values and isinstance(written, dict) else {}, file, place)
    try:
        flat = flattened(cls, section.written)
    except ValueError as exc:
        line = section.line_of(str(exc).partition(":")[0].split("."))
        raise ConfigError(f"{file.path}:{line}: {where.removeprefix(f'{file.path}: ')}: {exc}") from exc
    unknown = sorted(name for name in map(str, flat) if name not in settings_of(cls))
    if unknown:
        line = section.line_of(unknown[0].split("."))
        raise ConfigError(
            f"{file.path}:{line}: {where.removeprefix(f'{file.path}: ')}: {unknown_name(cls, unknown[0], 'key')}"
        )
    return section


def require_keys(values: Any, where: str) -> dict[str, Any]:
    """A section's values, {} for an empty one. Raises ConfigError for other types."""
    if not isinstance(values, dict | None):
        raise ConfigError(f"{where}: found {type(values).__name__}; expected keys and their values")
    return dict(values or {})


def _exit(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise SystemExit(2)
