"""Configuration of every service: merges flags over environment over YAML over defaults into one frozen model.

One YAML file may configure all services: each reads the section with its name and knows the names of the others, so
that a misspelt section is an error too. In a run with several policies, `policies` names them, each with its own
values, which override the shared section.

    trainer: {max_steps: 70, learning_rate: 2.0e-4}
    sampler: {max_turns: 4}
    policies: {solver: {}, judge: {trainer: {learning_rate: 1.0e-4}}}

Unknown keys, duplicate keys, missing keys, wrong types and values out of any range stop the start with a message that
names the source and the field.

A secret field (`secret_field`) appears in no message, no `repr` and no document. It is passed in the environment: a flag is
visible in the process list to every user of the machine. `DB_CONNECTION_STRING` is the default connection string of every
service that needs one. `load_or_exit` removes secrets from the environment, so that no child process inherits them.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from shared.configuration.option_names import unknown_option
from shared.configuration.plain_values import problems_of
from shared.errors import ConfigError
from shared.files.yaml_file import read_yaml_file
from shared.names import check_name, cut, shortened
from shared.redaction import is_plain, redacted, redacted_values

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
SECTIONS = ("trainer", "sft", "export", "sampler", "keeper", "launch", "verify", "tasks")
POLICIES = "policies"
OF_A_POLICY = ("trainer", "keeper", "launch")  # sections that a policy may override
DATABASE = "db_connection_string"
DATABASE_VARIABLE = "DB_CONNECTION_STRING"
SECRETS = (
    DATABASE,
    "data_db",
)  # secret fields of all services; the launcher passes each only to children that need it
SECRET = {"secret": True}
LONGEST_MESSAGE = 1_000  # characters per error: a rule may quote a value of any length


def secret_field(default: Any = ..., *, description: str) -> Any:
    """A field whose value is or may contain a secret, such as a connection string: it appears in no message and no document."""
    described = f"{description} Pass one with a password in the environment."
    return Field(default, description=described, repr=False, json_schema_extra=dict(SECRET))


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name is a secret of some service."""
    return bool(re.fullmatch(rf"{DATABASE_VARIABLE}|TANDEM_[A-Z]+_({'|'.join(SECRETS)})", name, re.IGNORECASE))


def forget_secrets(section: str = r"\w+") -> None:
    """Remove the secrets of a section, or of all, from the environment, so that children do not inherit them."""
    for name in filter(is_secret_variable, list(os.environ)):
        if re.fullmatch(rf"{DATABASE_VARIABLE}|TANDEM_{section}_.*", name, re.IGNORECASE):
            del os.environ[name]


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

    @model_validator(mode="after")
    def values_are_such_as_documents_files_and_clocks_hold(self) -> Self:
        _refuse_unusable(type(self), dict(self))
        return self

    @classmethod
    def load(cls, argv: Sequence[str] | None = None) -> Self:
        """Read flags, environment (`TANDEM_<SECTION>_<FIELD>`) and YAML. Raises ConfigError; `--help` exits."""
        try:
            flags = _given_flags(cls, list(sys.argv[1:] if argv is None else argv))
            environment = _environment(cls)
        except SettingsError as exc:  # a list or an object that is not JSON
            raise ConfigError(f"flags or environment: {exc}; expected JSON") from exc
        except RecursionError as exc:
            raise ConfigError("flags or environment: a value is nested too deeply") from exc
        path = flags.get("config") or environment.get("config")
        sources = {"flags": flags, "environment": environment}
        if path:
            shared = read_section(Path(path), cls)
            own = _own_section(Path(path), cls, *sources.values(), shared)
            sources |= {f"{path}, {POLICIES}": own, str(path): shared}
        return cls.from_sources(sources)

    @classmethod
    def from_sources(cls, sources: Mapping[str, dict[str, Any]]) -> Self:
        """Merge {source: its values}; the first source with a value wins. Raises ConfigError, which names source and field."""
        merged: dict[str, Any] = {}
        for source, values in reversed(list(sources.items())):
            _refuse_unusable(cls, values, f"{source}: ")
            merged.update(values)
        try:
            return cls(**merged)
        except ValidationError as exc:
            raise ConfigError("\n".join(_explain(error, cls, sources) for error in exc.errors())) from exc

    @classmethod
    def load_or_exit(cls, argv: Sequence[str] | None = None) -> Self:
        """`load` for a `main`: prints the message and exits with status 2 if the configuration is wrong."""
        program = cls.program or cls.section
        try:
            config = cls.load(argv)
        except ConfigError as exc:
            _exit(f"{program}: {exc}")
        forget_secrets()
        return config

    @classmethod
    def given(cls, argv: Sequence[str]) -> dict[str, Any]:
        """Unchecked values of flags and environment, flags first; does not read the YAML file."""
        return _environment(cls) | _given_flags(cls, list(argv))

    def snapshot(self) -> dict[str, Any]:
        """Plain values of the resolved configuration, without secrets, for the run's document."""
        values = {k: v for k, v in self.model_dump(mode="json").items() if not _is_secret(type(self), k)}
        return {name: redacted_values(value) for name, value in values.items()}

    def secrets(self) -> list[str]:
        """The values that `snapshot` omits."""
        named = [name for name in type(self).model_fields if _is_secret(type(self), name)]
        return [str(value) for name in named if (value := getattr(self, name))]


def _is_secret(kind: type[BaseSettings], name: str) -> bool:
    extra = kind.model_fields[name].json_schema_extra if name in kind.model_fields else None
    return isinstance(extra, dict) and bool(extra.get("secret"))


def _refuse_unusable(cls: type[ServiceConfig], values: dict[str, Any], where: str = "") -> None:
    for name, found, expected in problems_of(values):
        shown = "" if _is_secret(cls, name) else f" is {redacted(found)}"
        raise ConfigError(f"{where}{name}{shown}; expected {expected}")


def _given_flags(cls: type[ServiceConfig], argv: list[str]) -> dict[str, Any]:
    names = [word.removeprefix("--").partition("=")[0].partition(".")[0] for word in argv if word.startswith("--")]
    if unknown := [name for name in names if name not in cls.model_fields and name != "help"]:
        raise ConfigError("\n".join(f"--{name}: {unknown_option(name, cls.model_fields)}" for name in unknown))
    program = cls.program or cls.section
    source: CliSettingsSource[Any] = CliSettingsSource(
        cls, cli_parse_args=argv, cli_prog_name=program, cli_exit_on_error=True
    )
    given = dict(source())
    for name, value in given.items():
        if _is_secret(cls, name) and "://" in str(value) and not is_plain(str(value)):
            variable = DATABASE_VARIABLE if name == DATABASE else f"TANDEM_{cls.section.upper()}_{name.upper()}"
            sys.stderr.write(
                f"{program}: --{name} may contain a secret, which the process list shows to every user of this machine: "
                f"set it in the environment, as {variable}\n"
            )
    return given


def _environment(cls: type[ServiceConfig]) -> dict[str, Any]:
    prefix = f"TANDEM_{cls.section.upper()}_"
    known = {f"{prefix}{name.upper()}" for name in cls.model_fields}
    if unknown := sorted(k for k in os.environ if k.upper().startswith(prefix) and k.upper() not in known):
        raise ConfigError(f"environment: unknown variable {unknown[0]}; {cls.section} knows {', '.join(sorted(known))}")
    found = dict(EnvSettingsSource(cls, env_prefix=prefix)())
    if DATABASE in cls.model_fields and cls.model_fields[DATABASE].is_required() and DATABASE_VARIABLE in os.environ:
        found.setdefault(DATABASE, os.environ[DATABASE_VARIABLE])
    return found


def read_section(path: Path, cls: type[ServiceConfig]) -> dict[str, Any]:
    """The section of `cls` in a YAML file, with checked keys. Raises ConfigError naming file, section and key."""
    return _checked(read_sections(path), cls, str(path))


def read_policies(path: Path) -> dict[str, dict[str, Any]]:
    """{policy: its sections} of the YAML file's `policies`; {} without it. Raises ConfigError."""
    found = read_sections(path).get(POLICIES)
    found = {} if found is None else found
    if not isinstance(found, dict) or not all(isinstance(sections, dict | None) for sections in found.values()):
        raise ConfigError(
            f"{path}: {POLICIES}: found {shortened(found)}; expected names, each with its sections or {{}}"
        )
    policies: dict[str, dict[str, Any]] = {str(name): sections or {} for name, sections in found.items()}
    for name, sections in policies.items():
        try:
            check_name("policy", name)
        except ConfigError as exc:
            raise ConfigError(f"{path}: {POLICIES}: {exc}") from exc
        if unknown := sorted(map(str, sections.keys() - set(OF_A_POLICY))):
            raise ConfigError(
                f"{path}: {POLICIES}.{name}: unknown section {unknown[0]!r}; expected one of {', '.join(OF_A_POLICY)}"
            )
        for section, values in sections.items():
            require_keys(values, f"{path}: {POLICIES}.{name}: {section}")
    return policies


def _own_section(path: Path, cls: type[ServiceConfig], *sources: dict[str, Any]) -> dict[str, Any]:
    """The policy's values for this service's section. The policy is the one that the first of `sources` names."""
    policies = read_policies(path)
    if not policies or cls.section not in OF_A_POLICY:
        return {}
    default = cls.model_fields["policy"].default
    policy = next((values["policy"] for values in sources if "policy" in values), default)
    if policy not in policies:
        raise ConfigError(f"{path}: policy is {policy!r}; expected one of its {POLICIES}: {', '.join(policies)}")
    return _checked(policies[policy], cls, f"{path}: {POLICIES}.{policy}")


def read_sections(path: Path) -> dict[str, Any]:
    """All sections of a YAML file, with checked names. Raises ConfigError."""
    whole = read_yaml_file(path)[0]
    whole = {} if whole is None else whole
    if not isinstance(whole, dict):
        raise ConfigError(f"{path}: found {type(whole).__name__}; expected sections {', '.join(SECTIONS)}")
    if unknown := sorted(map(str, whole.keys() - {*SECTIONS, POLICIES})):
        raise ConfigError(f"{path}: unknown section {unknown[0]!r}; expected one of {', '.join((*SECTIONS, POLICIES))}")
    return whole


def _checked(sections: dict[str, Any], cls: type[ServiceConfig], where: str) -> dict[str, Any]:
    values = require_keys(sections.get(cls.section), f"{where}: {cls.section}")
    if unknown := sorted(map(str, values.keys() - cls.model_fields.keys())):
        raise ConfigError(f"{where}: {cls.section}: {unknown_option(unknown[0], cls.model_fields, 'key')}")
    return values


def require_keys(values: Any, where: str) -> dict[str, Any]:
    """A section's values, {} for an empty one. Raises ConfigError for other types."""
    if not isinstance(values, dict | None):
        raise ConfigError(f"{where}: found {type(values).__name__}; expected keys and their values")
    return dict(values or {})


def _explain(error: Any, cls: type[ServiceConfig], sources: Mapping[str, dict[str, Any]]) -> str:
    said = redacted(cut(str(error["msg"]).removeprefix("Value error, "), LONGEST_MESSAGE))
    if not error["loc"]:  # a rule between fields
        return said
    name, path = str(error["loc"][0]), ".".join(map(str, error["loc"]))
    where = next((source for source, values in sources.items() if name in values), None)
    if error["type"] == "missing":
        given_as = (
            f"in the environment, as {DATABASE_VARIABLE}," if path == DATABASE else f"as --{path}, in the environment,"
        )
        return f"{path} is missing: give it {given_as} or in the YAML file"
    hidden = isinstance(error["input"], dict) or _is_secret(cls, name)
    found = "" if hidden else f" is {redacted(shortened(error['input']))}"
    return f"{where + ': ' if where else ''}{path}{found}; {said}"


def _exit(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise SystemExit(2)
