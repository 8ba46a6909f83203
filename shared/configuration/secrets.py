"""Secret settings: they are in no message, no `repr` and no document, and given in the environment.

A flag stands in the process list, which every user of the machine reads. `DB_CONNECTION_STRING` is the connection string of every
service that needs one and is given no other. `DB_CONNECTION_STRING_FILE` names a file with it: a container's environment can be
read by everybody who may ask its engine (`docker inspect`).
"""

import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from shared.configuration.sections import settings_of
from shared.configuration.typed_values import home_path
from shared.errors import ConfigError

DATABASE = "db_connection_string"
DATABASE_VARIABLE = "DB_CONNECTION_STRING"
SECRETS = (
    DATABASE,
    "data_db",
    "token",
    "gateway_token",
    "environment_token",
)  # every secret of every service, which the launcher keeps from children without need of it
SECRET = {"secret": True}
FILE_SUFFIX = "_FILE"


def secret_field(default: Any = ..., *, description: str) -> Any:
    """A field whose value is a secret or may hold one, as a connection string does: it is in no message and no document."""
    described = f"{description} Pass one with a password in the environment."
    return Field(default, description=described, repr=False, json_schema_extra=dict(SECRET))


def is_secret(kind: type[BaseModel], name: str) -> bool:
    """Is this setting, of any section, a secret?"""
    extra = settings_of(kind)[name].field.json_schema_extra if name in settings_of(kind) else None
    return isinstance(extra, dict) and bool(extra.get("secret"))


def is_secret_variable(name: str) -> bool:
    """Does an environment variable of this name hold a secret of some service?"""
    names = "|".join(SECRETS)
    database = rf"{DATABASE_VARIABLE}({FILE_SUFFIX})?"
    return bool(re.fullmatch(rf"{database}|TANDEM_[A-Z]+_([A-Z_]+__)?({names})", name, re.IGNORECASE))


def configured_secret(variable: str) -> str | None:
    """The secret in an environment variable, or in the file that VARIABLE_FILE names. Raises ConfigError for both, for a file
    that cannot be read, and for an empty one."""
    value, path = os.environ.get(variable), os.environ.get(variable + FILE_SUFFIX)
    if not path:
        return value
    where = f"environment: {variable}{FILE_SUFFIX} is {path}"
    if value:
        raise ConfigError(f"{where}, and {variable} is set too; expected one of them")
    try:
        text = home_path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        problem = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise ConfigError(f"{where}: {problem}; expected a file with the secret alone, readable by this user") from exc
    if not text:
        raise ConfigError(f"{where}, which is empty; expected a file with the secret alone")
    return text


def token_of(value: str | None, file: Path | None, setting: str) -> str | None:
    """A token, from `value` or from the file that `setting` names; None: there is none. Raises ConfigError for an empty one."""
    if value == "":
        raise ConfigError(f"{setting.removesuffix('_file')} is empty; expected a token, or none at all")
    if file is None:
        return value
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{setting}: {file} cannot be read: {exc}") from exc
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError(f"{setting}: {file} has no token; expected one line of ASCII characters")
    return token


def forget_secrets(section: str = r"\w+") -> None:
    """Take those of a section, or of all, out of the environment: they were read, and children would inherit them."""
    for name in filter(is_secret_variable, list(os.environ)):
        if re.fullmatch(rf"{DATABASE_VARIABLE}({FILE_SUFFIX})?|TANDEM_{section}_.*", name, re.IGNORECASE):
            del os.environ[name]
