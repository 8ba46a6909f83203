"""Names of tools and prompts of several servers together: a thing's own name where it is unique, else `server_name`."""

import re
from collections import Counter
from collections.abc import Iterable

from shared.errors import ConfigError

Identity = tuple[str, str]  # the server's name, and the thing's own


def unique_names(identities: Iterable[Identity]) -> dict[str, Identity]:
    """Identities by shown name, in their order. Raises ConfigError if prefixes do not make two names distinct."""
    once = dict.fromkeys(identities)  # some servers list a tool twice
    counts = Counter(name for _, name in once)
    named: dict[str, Identity] = {}
    for identity in once:
        name = prefixed(identity) if counts[identity[1]] > 1 else identity[1]
        if name in named:
            both = " and ".join(map(dotted, (named[name], identity)))
            raise ConfigError(f"two tools are named {name!r}: {both}; rename a server in the mcpServers JSON")
        named[name] = identity
    return named


def prefix(server: str) -> str:
    return re.sub(r"\W", "_", server) + "_"


def prefixed(identity: Identity) -> str:
    return prefix(identity[0]) + identity[1]


def dotted(identity: Identity) -> str:
    return ".".join(identity)
