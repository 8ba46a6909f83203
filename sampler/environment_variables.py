"""Replaces `${NAME}` in a configuration file by an environment variable, so that the file contains no secret."""

import os
import re
from collections.abc import Mapping

from shared.errors import ConfigError

VARIABLE = re.compile(r"\$\{(\w+)\}")


def expand(text: str, where: str, defaults: Mapping[str, str] | None = None) -> str:
    """`text` with every `${NAME}` replaced. Raises ConfigError, prefixed with `where`, for an unset variable."""

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        value = os.environ.get(name, (defaults or {}).get(name))
        if value is None:
            raise ConfigError(f"{where}: environment variable {name} is not set")
        return value

    return VARIABLE.sub(value_of, text)
