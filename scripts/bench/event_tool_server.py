"""A tool server over streamable HTTP that answers each request with an event stream, as most servers of others do.

python -m scripts.bench.event_tool_server --port PORT
"""

import argparse

import uvicorn
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent


def build_server() -> MCPServer:
    server = MCPServer("events", log_level="WARNING")

    @server.tool(structured_output=False)
    async def calculator(expression: str) -> CallToolResult:
        """The sum of two whole numbers, for example 47+38."""
        text = str(sum(int(number) for number in expression.split("+")))
        return CallToolResult(content=[TextContent(type="text", text=text)])

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    app = build_server().streamable_http_app(json_response=False)
    uvicorn.run(app, host="127.0.0.1", port=port, http="h11", log_level="critical", access_log=False)
