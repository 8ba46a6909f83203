"""What flags and environment variables give, as {setting as it was written: value}, not yet checked. An empty one is not given.

A setting of a section has two spellings in both: `--learning_rate` and `--optimizer.learning_rate`,
`TANDEM_TRAINER_LEARNING_RATE` and `TANDEM_TRAINER_OPTIMIZER__LEARNING_RATE`.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsError

from shared.configuration.secrets import DATABASE, DATABASE_VARIABLE, configured_secret, is_secret
from shared.configuration.sections import flattened, setting_of, settings_of, spellings, spellings_of, unknown_name
from shared.configuration.typed_values import NONE, is_empty, model_in, takes
from shared.errors import ConfigError
from shared.redaction import is_plain

EMPTY = "empty"  # mark of a setting of which an empty text is a value: `Field(json_schema_extra={EMPTY: …})`
CONNECTIONS = (DATABASE, "data_db")


def command_line_values(cls: type[BaseSettings], argv: Sequence[str], program: str, section: str) -> dict[str, Any]:
    """Raises ConfigError for an unknown flag, for one without a value and for two values of one setting; `--help` exits."""
    words = [word.removeprefix("--").partition("=")[0] for word in argv if word.startswith("--")]
    problems = [problem for word in words if word != "help" and (problem := _problem(cls, word))]
    if problems:
        raise ConfigError("\n".join(problems))
    texts, others = _texts(cls, list(argv))
    source: CliSettingsSource[Any] = CliSettingsSource(
        cls,
        cli_parse_args=others,
        cli_prog_name=program,
        cli_use_class_docs_for_groups=True,
        cli_parse_none_str="none",
    )
    written = {spellings(cls)[word]: word for word in words if word in spellings(cls)}
    given = {written.get(name, name): value for name, value in flattened(cls, source()).items()}
    given |= {word: _decoded_all(cls, spellings(cls)[word], values) for word, values in texts.items()}
    given = without_empty(cls, given)
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


def _problem(cls: type[BaseSettings], word: str) -> str:
    """Why a flag is none; empty: it is one, or a key of one that is a mapping."""
    name = setting_of(cls, word)
    if name is None:
        return f"--{word}: {unknown_name(cls, word)}"
    if word in spellings(cls):
        return ""
    setting, key = _spelled(cls, name, word)
    model = model_in(settings_of(cls)[name].field.annotation)
    if model is None:
        form = ", a mapping in JSON" if takes(settings_of(cls)[name].field.annotation, dict) else ""
        return f"--{word}: {setting} has no keys that are flags; expected --{setting} VALUE{form}"
    known = model.model_fields
    return "" if key in known else f"--{word}: unknown key {key!r}; expected one of {', '.join(known)}"


def _spelled(cls: type[BaseSettings], name: str, word: str) -> tuple[str, str]:
    """Of a key of a mapping: the setting as it was written, and the key."""
    setting = max((one for one in spellings_of(cls, name) if word.startswith(f"{one}.")), key=len)
    return setting, word[len(setting) + 1 :]


def _texts(cls: type[BaseSettings], argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """{flag as written: its values} of settings that are no mappings, and the words that are left for the parser."""
    texts: dict[str, list[str]] = {}
    others: list[str] = []
    seen: dict[str, tuple[str, str]] = {}
    remaining = list(argv)
    while remaining:
        word = remaining.pop(0)
        flag, equals, value = word.partition("=")
        name = spellings(cls).get(flag.removeprefix("--")) if flag.startswith("--") else None
        if name is None:
            others.append(f"{_whole_flag(cls, flag)}{equals}{value}")
            continue
        if not equals:
            if not remaining or remaining[0].startswith("--"):
                raise ConfigError(f"flags: {flag} has no value; expected {flag} VALUE")
            value = remaining.pop(0)
        first, before = seen.setdefault(name, (flag, value))
        if first != flag and before != value:
            raise ConfigError(f"flags: {first} and {flag} are one setting, with different values; expected one of them")
        if first == flag and _is_mapping(cls, name):
            others.append(f"--{settings_of(cls)[name].dotted}={value}")
        elif first == flag:
            texts.setdefault(flag.removeprefix("--"), []).append(value)
    return texts, others


def _whole_flag(cls: type[BaseSettings], flag: str) -> str:
    """Of a key of a mapping, `--eval_sampling.top_p`, the flag with all its sections; any other word as it is."""
    written = flag.removeprefix("--")
    name = setting_of(cls, written) if flag.startswith("--") else None
    if name is None:
        return flag
    return f"--{settings_of(cls)[name].dotted}.{_spelled(cls, name, written)[1]}"


def _is_mapping(cls: type[BaseSettings], name: str) -> bool:
    return takes(settings_of(cls)[name].field.annotation, dict, BaseModel)


def _decoded_all(cls: type[BaseSettings], name: str, texts: list[str]) -> Any:
    """Of one flag, which a list may repeat: its items come one after another."""
    values = [_decoded(cls, name, text) for text in texts]
    if len(values) == 1 or not takes(settings_of(cls)[name].field.annotation, list):
        return values[-1]
    return [one for value in values for one in (value if isinstance(value, list) else value.split(","))]


def _decoded(cls: type[BaseSettings], name: str, text: str) -> Any:
    """A mapping or a list in JSON; any other text as it is. Raises SettingsError for what is no JSON."""
    is_json = text.lstrip().startswith("[") and takes(settings_of(cls)[name].field.annotation, list)
    if not is_json and not (_is_mapping(cls, name) and text.strip() and text not in NONE):
        return text
    try:
        return json.loads(text)
    except ValueError as exc:
        raise SettingsError(f'value of field "{name}" cannot be parsed') from exc


def without_empty(cls: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Without what is empty, which is not given. Raises ValueError for an empty secret: a variable that was meant to hold one."""
    nonempty: dict[str, Any] = {}
    for written, value in values.items():
        name = spellings(cls).get(written, written)
        if not is_empty(value) or (name in settings_of(cls) and EMPTY in _extra(settings_of(cls)[name].field)):
            nonempty[written] = value
        elif is_secret(cls, name) and name not in CONNECTIONS:
            raise ConfigError(f"{written} is empty; expected a token, or none at all")
    return nonempty


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


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
    unknown = sorted(given.keys() - {variable for variables in known.values() for variable in variables})
    if unknown:
        names = ", ".join(sorted(next(iter(variables)) for variables in known.values()))
        raise ConfigError(f"environment: unknown variable {unknown[0]}; {section} knows {names}")
    decoded: dict[str, Any] = {}
    for name in settings_of(cls):
        for variable, written in known[name].items():
            if variable in given:
                try:
                    decoded[written] = _decoded(cls, name, given[variable])
                except SettingsError as exc:
                    raise SettingsError(f'value of field "{name}" in {variable} cannot be parsed') from exc
    decoded = without_empty(cls, decoded)
    field = cls.model_fields.get(DATABASE)
    takes_one = field is not None and (field.is_required() or getattr(cls, "takes_database_variable", False))
    database = configured_secret(DATABASE_VARIABLE) if takes_one and DATABASE not in decoded else None
    if database:
        decoded[DATABASE] = database
    return decoded
