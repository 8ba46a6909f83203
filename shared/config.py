"""Configuration of every service: flags over environment over YAML over defaults, into one frozen model.

One YAML file may configure all services: each reads the section of its own name and knows the names of the others, so
that a misspelt section is an error too. Where a run has several policies, `policies` names them, each with what it has of its
own: it wins over the section that all of them share.

    trainer: {max_steps: 70, learning_rate: 2.0e-4}
    sampler: {max_turns: 4}
    policies: {solver: {}, judge: {trainer: {learning_rate: 1.0e-4}}}

Unknown keys, keys given twice, missing keys and wrong types stop the start with a message that names the source and the field.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from shared.errors import ConfigError
from shared.yaml_file import read_yaml_file

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
SECTIONS = ("trainer", "sft", "export", "sampler", "keeper", "launch", "verify", "tasks")
POLICIES = "policies"
OF_A_POLICY = ("trainer", "keeper", "launch")  # sections that a policy may have of its own


class ServiceConfig(BaseSettings):
    """Base of every service's configuration. Subclasses set `section` and describe each field: that text is `--help`."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, cli_avoid_json=True, cli_implicit_flags=False)
    section: ClassVar[str] = ""
    program: ClassVar[str] = ""

    config: Path | None = Field(None, description="YAML file; its section of this service's name is read.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load` merges, so that an error can name the source

    @classmethod
    def load(cls, argv: Sequence[str] | None = None) -> Self:
        """Read flags, environment (`TANDEM_<SECTION>_<FIELD>`) and YAML. Raises ConfigError; `--help` exits."""
        try:
            flags = _given_flags(cls, list(sys.argv[1:] if argv is None else argv))
            environment = _environment(cls)
        except SettingsError as exc:  # a list or an object that is no JSON
            raise ConfigError(f"flags or environment: {exc}; expected JSON") from exc
        path = flags.get("config") or environment.get("config")
        sources = {"flags": flags, "environment": environment}
        if path:
            shared = read_section(Path(path), cls)
            own = _own_section(Path(path), cls, *sources.values(), shared)
            sources |= {f"{path}, {POLICIES}": own, str(path): shared}
        merged: dict[str, Any] = {}
        for values in reversed(sources.values()):
            merged.update(values)
        try:
            return cls(**merged)
        except ValidationError as exc:
            raise ConfigError("\n".join(_explain(error, sources) for error in exc.errors())) from exc

    @classmethod
    def load_or_exit(cls, argv: Sequence[str] | None = None) -> Self:
        """`load` for a `main`: prints the message and exits with status 2 where the configuration is wrong."""
        try:
            return cls.load(argv)
        except ConfigError as exc:
            _exit(f"{cls.program or cls.section}: {exc}")

    def snapshot(self) -> dict[str, Any]:
        """Plain values of the resolved configuration, for the run's document. Fields named `secret` leave it."""
        return {k: v for k, v in self.model_dump(mode="json").items() if not _is_secret(type(self), k)}


def _is_secret(kind: type[BaseSettings], name: str) -> bool:
    extra = kind.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("secret"))


def _given_flags(cls: type[ServiceConfig], argv: list[str]) -> dict[str, Any]:
    source: CliSettingsSource[Any] = CliSettingsSource(
        cls, cli_parse_args=argv, cli_prog_name=cls.program or cls.section, cli_exit_on_error=True
    )
    return dict(source())


def _environment(cls: type[ServiceConfig]) -> dict[str, Any]:
    prefix = f"TANDEM_{cls.section.upper()}_"
    known = {f"{prefix}{name.upper()}" for name in cls.model_fields}
    if unknown := sorted(k for k in os.environ if k.upper().startswith(prefix) and k.upper() not in known):
        raise ConfigError(f"environment: unknown variable {unknown[0]}; {cls.section} knows {', '.join(sorted(known))}")
    return dict(EnvSettingsSource(cls, env_prefix=prefix)())


def read_section(path: Path, cls: type[ServiceConfig]) -> dict[str, Any]:
    """The section of `cls` in a YAML file, its keys checked. Raises ConfigError naming file, section and key."""
    return _checked(read_sections(path), cls, str(path))


def read_policies(path: Path) -> dict[str, dict[str, Any]]:
    """{policy: its own sections}, as the YAML file's `policies` names them; {}: it does not. Raises ConfigError."""
    found = read_sections(path).get(POLICIES) or {}
    if not isinstance(found, dict) or not all(isinstance(sections or {}, dict) for sections in found.values()):
        raise ConfigError(f"{path}: {POLICIES}: found {found!r}; expected names, each with its sections or {{}}")
    policies: dict[str, dict[str, Any]] = {str(name): sections or {} for name, sections in found.items()}
    for name, sections in policies.items():
        if unknown := sorted(map(str, sections.keys() - set(OF_A_POLICY))):
            raise ConfigError(
                f"{path}: {POLICIES}.{name}: unknown section {unknown[0]!r}; expected one of {', '.join(OF_A_POLICY)}"
            )
    return policies


def _own_section(path: Path, cls: type[ServiceConfig], *sources: dict[str, Any]) -> dict[str, Any]:
    """What the policy that `sources` name, the first of them first, has of its own in this service's section."""
    policies = read_policies(path)
    if not policies or cls.section not in OF_A_POLICY:
        return {}
    default = cls.model_fields["policy"].default
    policy = next((values["policy"] for values in sources if "policy" in values), default)
    if policy not in policies:
        raise ConfigError(f"{path}: policy is {policy!r}; expected one of its {POLICIES}: {', '.join(policies)}")
    return _checked(policies[policy], cls, f"{path}: {POLICIES}.{policy}")


def read_sections(path: Path) -> dict[str, Any]:
    """Every section of a YAML file, the names checked. Raises ConfigError."""
    whole = read_yaml_file(path)[0] or {}
    if not isinstance(whole, dict):
        raise ConfigError(f"{path}: found {type(whole).__name__}; expected sections {', '.join(SECTIONS)}")
    if unknown := sorted(map(str, whole.keys() - {*SECTIONS, POLICIES})):
        raise ConfigError(f"{path}: unknown section {unknown[0]!r}; expected one of {', '.join((*SECTIONS, POLICIES))}")
    return whole


def _checked(sections: dict[str, Any], cls: type[ServiceConfig], where: str) -> dict[str, Any]:
    values = sections.get(cls.section) or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {cls.section}: found {type(values).__name__}; expected keys and their values")
    if unknown := sorted(map(str, values.keys() - cls.model_fields.keys())):
        raise ConfigError(
            f"{where}: {cls.section}: unknown key {unknown[0]!r}; expected one of {', '.join(sorted(cls.model_fields))}"
        )
    return dict(values)


def _explain(error: Any, sources: dict[str, dict[str, Any]]) -> str:
    said = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:  # a rule between fields
        return said
    name, path = str(error["loc"][0]), ".".join(map(str, error["loc"]))
    where = next((source for source, values in sources.items() if name in values), None)
    if error["type"] == "missing":
        return f"{path} is missing: give it as --{path}, in the environment, or in the YAML file"
    found = "" if isinstance(error["input"], dict) else f" is {error['input']!r}"
    return f"{where + ': ' if where else ''}{path}{found}; {said}"


def _exit(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise SystemExit(2)
