"""Replaces variables in a configuration file, so that the file contains no secret.

    ${NAME}, ${env:NAME}        the environment variable, or what is in the file that NAME_FILE names; unset: an error
    ${NAME:-text}               the same, or the text where it is not set or empty; also ${env:NAME:-text}
    $${NAME}                    the text ${NAME} itself

Every other `${…}` (an editor's `${input:key}`, say) is an error: a server would get the literal text.
"""

import re
from collections.abc import Mapping

from shared.configuration.secrets import configured_secret
from shared.errors import ConfigError

VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)\}")
_WITH_DEFAULT = re.compile(r"\$\{(?:env:)?(\w+)(?::-((?:(?!\$\{)[^}])*))?\}", re.DOTALL)
_ANY = re.compile(r"\$\$\{[^}]*\}?|\$\{[^}]*\}?", re.DOTALL)
MOST_SHOWN = 60


def expand(text: str, where: str, defaults: Mapping[str, str] | None = None) -> str:
    """`text` with every variable replaced. Raises ConfigError, prefixed with `where`, for one that is unset or no variable."""

    def value_of(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        reference = _WITH_DEFAULT.fullmatch(match[0])
        if reference is None:
            raise ConfigError(
                f"{where}: {match[0][:MOST_SHOWN]!r} is no variable; expected ${{NAME}}, ${{NAME:-text}} or ${{env:NAME}}, or "
                "$${…} for the text itself"
            )
        name, otherwise = reference.groups()
        value = configured_secret(name)
        value = (defaults or {}).get(name) if value is None else value
        if otherwise is not None:
            return value or otherwise
        if value is None:
            raise ConfigError(f"{where}: environment variable {name} is not set")
        return value

    return _ANY.sub(value_of, text)
