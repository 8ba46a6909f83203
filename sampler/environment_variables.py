"""Replaces `${NAME}` in a configuration file by an environment variable, or by what is in the file that NAME_FILE names, so that
the configuration file contains no secret."""

import re
from collections.abc import Mapping

from shared.configuration.secrets import given_secret
from shared.errors import ConfigError

VARIABLE = re.compile(r"\$\{(\w+)\}")


def expand(text: str, where: str, defaults: Mapping[str, str] | None = None) -> str:
    """`text` with every `${NAME}` replaced. Raises ConfigError, prefixed with `where`, for an unset variable."""

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        value = given_secret(name)
        value = (defaults or {}).get(name) if value is None else value
        if value is None:
            raise ConfigError(f"{where}: environment variable {name} is not set")
        return value

    return VARIABLE.sub(value_of, text)
