"""The bundled calculator's tool, served by the official SDK's server: what the bundled one is compared with."""

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from sampler.mcp_docker.tools.calculator import tool_server

TOOLS = tool_server().tools


async def on_list_tools(context, params):
    return ListToolsResult(tools=[Tool.model_validate(tool.listed) for tool in TOOLS.values()])


async def on_call_tool(context, params):
    tool = TOOLS.get(params.name)
    if tool is None:
        told = f"there is no tool {params.name!r}; expected one of {', '.join(TOOLS)}"
        return CallToolResult(content=[TextContent(type="text", text=told)], is_error=True)
    return CallToolResult.model_validate(tool.result(params.arguments or {}))


async def main() -> None:
    server = Server("calculator", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
