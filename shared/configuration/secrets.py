"""Secret settings: they are in no message, no `repr` and no document, and given in the environment.

A flag stands in the process list, which every user of the machine reads. `DB_CONNECTION_STRING` is the connection string of every
service that needs one and is given no other.
"""

import os
import re
from typing import Any

from pydantic import BaseModel, Field

from shared.configuration.sections import settings_of

DATABASE = "db_connection_string"
DATABASE_VARIABLE = "DB_CONNECTION_STRING"
SECRETS = (
    DATABASE,
    "data_db",
)  # every secret of every service, which the launcher keeps from children without need of it
SECRET = {"secret": True}


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
    return bool(re.fullmatch(rf"{DATABASE_VARIABLE}|TANDEM_[A-Z]+_([A-Z_]+__)?({names})", name, re.IGNORECASE))


def forget_secrets(section: str = r"\w+") -> None:
    """Take those of a section, or of all, out of the environment: they were read, and children would inherit them."""
    for name in filter(is_secret_variable, list(os.environ)):
        if re.fullmatch(rf"{DATABASE_VARIABLE}|TANDEM_{section}_.*", name, re.IGNORECASE):
            del os.environ[name]
