"""A bundled tool: a function with checked arguments, and what it answers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sampler.mcp_docker.tools.arguments import ToolArguments, WrongArguments
from sampler.mcp_docker.tools.protocol import JsonObject, text_result


class ToolRefusal(Exception):
    """The call has no result; the message tells the model why."""


class BundledTool(NamedTuple):
    """`function` takes the checked arguments and returns text. A plain function runs in a thread, unless it is `quick`."""

    name: str
    description: str
    arguments: type[ToolArguments]
    function: Callable[[Any], Any]
    quick: bool = False  # at most some milliseconds, in which the process does nothing else

    @property
    def listed(self) -> JsonObject:
        return {"name": self.name, "description": self.description, "inputSchema": self.arguments.json_schema}

    def result(self, values: JsonObject) -> JsonObject:
        """Of a plain function."""
        try:
            return text_result(self.function(self.arguments(**values)))
        except (WrongArguments, ToolRefusal) as exc:
            return text_result(str(exc), is_error=True)


class BundledServer:
    """The tools of one process."""

    def __init__(self, name: str, tools: Sequence[BundledTool]) -> None:
        self.name = name
        self.tools = {tool.name: tool for tool in tools}


def server_of(name: str, tools: Sequence[BundledTool]) -> BundledServer:
    return BundledServer(name, tools)
