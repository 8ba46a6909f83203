"""A tool server of the official SDK: functions with checked arguments, over a pair of streams."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, BinaryIO

import anyio
import anyio.to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from pydantic import BaseModel, ConfigDict, ValidationError

ToolContent = str


class ToolArguments(BaseModel):
    """Of one tool; its fields' descriptions are what the model reads."""

    model_config = ConfigDict(extra="forbid")


class ToolRefusal(Exception):
    """The call has no result; the message tells the model why."""


@dataclass(frozen=True, slots=True)
class BundledTool:
    """`function` takes the checked arguments and returns text; a plain function runs in a thread."""

    name: str
    description: str
    arguments: type[ToolArguments]
    function: Callable[[Any], Any]

    @property
    def listed(self) -> Tool:
        schema = self.arguments.model_json_schema()
        schema.pop("description", None)
        return Tool(name=self.name, description=self.description, input_schema=schema)

    async def result(self, values: dict[str, Any]) -> CallToolResult:
        try:
            arguments = self.arguments.model_validate(values)
            if inspect.iscoroutinefunction(self.function):
                text = await self.function(arguments)
            else:
                text = await anyio.to_thread.run_sync(self.function, arguments)
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_input=False)[0]
            return _answer(f"{'.'.join(map(str, wrong['loc'])) or 'arguments'}: {wrong['msg']}", is_error=True)
        except ToolRefusal as exc:
            return _answer(str(exc), is_error=True)
        return _answer(text)


def _answer(text: str, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)


def server_of(name: str, tools: Sequence[BundledTool]) -> Server[Any]:
    by_name = {tool.name: tool for tool in tools}

    async def on_list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[tool.listed for tool in tools])

    async def on_call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            return _answer(f"there is no tool {params.name!r}; expected one of {', '.join(by_name)}", is_error=True)
        return await tool.result(params.arguments or {})

    return Server(name, on_list_tools=on_list_tools, on_call_tool=on_call_tool)


def run(server: Server[Any], stdin: BinaryIO | None = None, stdout: BinaryIO | None = None) -> None:
    """Serve until stdin ends. Streams are this process's stdin and stdout, unless given."""

    async def serve() -> None:
        reading = anyio.wrap_file(TextIOWrapper(stdin or sys.stdin.buffer, encoding="utf-8", errors="replace"))
        writing = anyio.wrap_file(TextIOWrapper(stdout or sys.stdout.buffer, encoding="utf-8"))
        async with stdio_server(reading, writing) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)
