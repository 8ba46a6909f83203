"""A stdio MCP server that lists its seven tools in pages of three, and counts how often it was asked for a list."""

import asyncio
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

TOOLS = [types.Tool(name=f"t{i}", input_schema={"type": "object"}) for i in range(7)]
n_lists = 0


async def on_list(ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    global n_lists
    n_lists += 1
    first = int(params.cursor) if params and params.cursor else 0
    after = first + 3
    return types.ListToolsResult(tools=TOOLS[first:after], next_cursor=str(after) if after < len(TOOLS) else None)


async def on_call(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=f"{params.name} after {n_lists} lists")])


async def main() -> None:
    server = Server("paged", on_list_tools=on_list, on_call_tool=on_call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


asyncio.run(main())
