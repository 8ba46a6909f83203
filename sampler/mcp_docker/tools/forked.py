"""Which commands are bundled tools, and how forks of a process that has them loaded serve them (`shared.forks`)."""

import sys
from collections.abc import Sequence

from shared.forks.processes import LoadedTools

_TOOLS = "sampler.mcp_docker.tools."


def bundled_module(words: Sequence[str]) -> str | None:
    """The module of `PYTHON -m sampler.mcp_docker.tools.NAME …`, if the command is one."""
    if len(words) >= 3 and words[0] == sys.executable and words[1] == "-m" and words[2].startswith(_TOOLS):
        return words[2]
    return None


def loaded_tools(modules: Sequence[str]) -> LoadedTools:
    return LoadedTools(list(modules), f"{_TOOLS}serving:run_module", f"{_TOOLS}calls")
