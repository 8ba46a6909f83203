"""What flags and environment variables give, as {setting as it was written: value}, not yet checked.

A setting of a section has two spellings in both: `--learning_rate` and `--optimizer.learning_rate`,
`TANDEM_TRAINER_LEARNING_RATE` and `TANDEM_TRAINER_OPTIMIZER__LEARNING_RATE`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from pydantic_settings import BaseSettings, CliSettingsSource, EnvSettingsSource, SettingsError

from shared.configuration.secrets import DATABASE, DATABASE_VARIABLE, given_secret, is_secret
from shared.configuration.sections import flattened, setting_of, settings_of, spellings, spellings_of, unknown_name
from shared.errors import ConfigError
from shared.redaction import is_plain


def given_flags(cls: type[BaseSettings], argv: Sequence[str], program: str, section: str) -> dict[str, Any]:
    """Raises ConfigError for an unknown flag and for two values of one setting; `--help` exits."""
    words = [word.removeprefix("--").partition("=")[0] for word in argv if word.startswith("--")]
    if unknown := [word for word in words if word != "help" and setting_of(cls, word) is None]:
        raise ConfigError("\n".join(f"--{name}: {unknown_name(cls, name)}" for name in unknown))
    source: CliSettingsSource[Any] = CliSettingsSource(
        cls, cli_parse_args=_spelled_out(cls, list(argv)), cli_prog_name=program, cli_use_class_docs_for_groups=True
    )
    written = {spellings(cls)[word]: word for word in words if word in spellings(cls)}
    given = {written.get(name, name): value for name, value in flattened(cls, source()).items()}
    for name, value in given.items():
        if is_secret(cls, spellings(cls)[name]) and "://" in str(value) and not is_plain(str(value)):
            variable = (
                DATABASE_VARIABLE if name == DATABASE else next(iter(variables_of(cls, section)[spellings(cls)[name]]))
            )
            sys.stderr.write(
                f"{program}: --{name} may contain a secret, which the process list shows to every user of this machine: "
                f"set it in the environment, as {variable}\n"
            )
    return given


def _spelled_out(cls: type[BaseSettings], argv: list[str]) -> list[str]:
    """Every flag with its sections, as the parser knows it, and once where it is given in both spellings."""
    found: list[str] = []
    seen: dict[str, tuple[str, str]] = {}
    left = list(argv)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        name = spellings(cls).get(flag.removeprefix("--")) if flag.startswith("--") else None
        if name is None:
            found.append(word)
            continue
        if not equals and left and not left[0].startswith("--"):
            value = left.pop(0)
        first, before = seen.setdefault(name, (flag, value))
        if first != flag and before != value:
            raise ConfigError(f"flags: {first} and {flag} are one setting, with different values; expected one of them")
        if first == flag:
            found.append(f"--{settings_of(cls)[name].dotted}={value}")
    return found


def variables_of(cls: type[BaseSettings], section: str) -> dict[str, dict[str, str]]:
    """{setting: {variable: the spelling it stands for}}, the shortest first."""
    return {
        name: {f"TANDEM_{section}_{written.replace('.', '__')}".upper(): written for written in spellings_of(cls, name)}
        for name in settings_of(cls)
    }


def given_variables(cls: type[BaseSettings], section: str) -> dict[str, Any]:
    """Raises ConfigError for an unknown variable of the service, SettingsError for a list or an object that is no JSON."""
    given = {
        name.upper(): text for name, text in os.environ.items() if name.upper().startswith(f"TANDEM_{section.upper()}_")
    }
    known = variables_of(cls, section)
    if unknown := sorted(given.keys() - {variable for variables in known.values() for variable in variables}):
        names = ", ".join(sorted(next(iter(variables)) for variables in known.values()))
        raise ConfigError(f"environment: unknown variable {unknown[0]}; {section} knows {names}")
    source = EnvSettingsSource(cls)
    found: dict[str, Any] = {}
    for name, setting in settings_of(cls).items():
        for variable, written in known[name].items():
            if variable in given:
                try:
                    found[written] = source.prepare_field_value(name, setting.field, given[variable], False)
                except ValueError as exc:
                    raise SettingsError(f'value of field "{name}" in {variable} cannot be parsed') from exc
    field = cls.model_fields.get(DATABASE)
    takes_one = field is not None and (field.is_required() or getattr(cls, "takes_database_variable", False))
    if takes_one and DATABASE not in found and (database := given_secret(DATABASE_VARIABLE)) is not None:
        found[DATABASE] = database
    return found
