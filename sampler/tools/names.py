"""What the model may call, under which names.

A tool is shown by its own name; names that several servers use get `server_` in front. Allow and deny lists hold names or
patterns (`*`, `?`), matched against the shown name and the tool's own; with a dot in it also against `server.tool`. Deny wins.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from sampler.tools.offered import OfferedTool
from shared.errors import ConfigError


def unique_names(tools: Sequence[OfferedTool]) -> dict[str, OfferedTool]:
    """By shown name, in the servers' order. Raises ConfigError where prefixes do not tell two tools apart."""
    counts = Counter(tool.name for tool in tools)
    named: dict[str, OfferedTool] = {}
    for tool in tools:
        prefix = re.sub(r"\W", "_", tool.server)
        name = f"{prefix}_{tool.name}" if counts[tool.name] > 1 else tool.name
        if name in named:
            raise ConfigError(f"two tools are named {name!r}; rename a server in the mcpServers JSON")
        named[name] = tool
    return named


def chosen(
    named: Mapping[str, OfferedTool], allow: Collection[str] | None, exclude: Collection[str]
) -> dict[str, OfferedTool]:
    """Those that are allowed (None: all) and not excluded. An allowed pattern that fits nothing is a ConfigError."""
    for pattern in allow or ():
        if not any(_fits(name, tool, pattern) for name, tool in named.items()):
            raise ConfigError(f"tool {pattern!r} is not offered; the servers offer {', '.join(named) or 'none'}")

    def listed(name: str, tool: OfferedTool, patterns: Collection[str]) -> bool:
        return any(_fits(name, tool, pattern) for pattern in patterns)

    return {
        name: tool
        for name, tool in named.items()
        if (allow is None or listed(name, tool, allow)) and not listed(name, tool, exclude)
    }


def _fits(name: str, tool: OfferedTool, pattern: str) -> bool:
    if fnmatchcase(name, pattern) or fnmatchcase(tool.name, pattern):
        return True
    return "." in pattern and fnmatchcase(f"{tool.server}.{tool.name}", pattern)
