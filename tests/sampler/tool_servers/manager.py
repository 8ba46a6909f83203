"""A manager of MCP servers that speaks the older HTTP protocol (`/mcpapi`): `manager.py servers.json`, prints its port first.

Faithful to AgentDock's node in what a client can see: one session per server, shared by all clients; texts that happen to be
JSON are parsed; every image is called image/jpeg; `isError` is dropped; arguments are checked against the schema; an error
in a call is answered with HTTP 200 and the fields of the exception that should have been raised.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import uvicorn
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import ImageContent, TextContent, Tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

sessions: dict[str, Client] = {}
tools: dict[str, list[Tool]] = {}
TOKEN = os.environ.get("MANAGER_TOKEN")


def schema(tool: Tool, name: str) -> dict[str, Any]:
    function = {"name": name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def servers(request: Request) -> Response:
    return JSONResponse({"servers": list(sessions)})


async def all_tools(request: Request) -> Response:
    return JSONResponse({"tools": [schema(tool, f"{s}.{tool.name}") for s, listed in tools.items() for tool in listed]})


async def server_tools(request: Request) -> Response:
    server = request.path_params["server"]
    if server not in tools:
        return JSONResponse({"detail": f"Server {server} not found"}, status_code=404)
    return JSONResponse({"server": server, "tools": [schema(tool, tool.name) for tool in tools[server]]})


async def call(request: Request) -> Response:
    try:
        parts = await call_tool(request.path_params["tool"], await request.json())
    except (AssertionError, MCPError, jsonschema.ValidationError, NotImplementedError, LookupError) as exc:
        return JSONResponse({"status_code": 500, "detail": str(exc), "headers": None})
    if len(parts) == 1 and parts[0]["type"] == "text":
        return JSONResponse({"content": parts[0]["text"]})
    return JSONResponse({"content": parts})


async def call_tool(tool_id: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    server, _, name = tool_id.partition(".")
    if not name:
        owners = [owner for owner, listed in tools.items() if any(tool.name == tool_id for tool in listed)]
        if not owners:
            raise LookupError(f"404: Tool not found: {tool_id}")
        server, name = owners[0], tool_id
    assert server in sessions, f"Session for server '{server}' not found"
    found = next((tool for tool in tools[server] if tool.name == name), None)
    assert found is not None, f"Tool '{name}' not found in server '{server}'"
    jsonschema.validate(arguments, found.input_schema)
    result = await sessions[server].call_tool(name, arguments)
    return [part(block) for block in result.content]


def part(block: Any) -> dict[str, Any]:
    if isinstance(block, TextContent):
        try:
            return {"type": "text", "text": json.loads(block.text)}
        except json.JSONDecodeError:
            return {"type": "text", "text": block.text}
    if isinstance(block, ImageContent):
        return {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + block.data}}
    raise NotImplementedError(f"Unknown content type: {type(block)}")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for name, entry in CONFIG["mcpServers"].items():
            parameters = StdioServerParameters(**entry)
            sessions[name] = await stack.enter_async_context(Client(parameters, mode="legacy"))
            tools[name] = (await sessions[name].list_tools()).tools
        print(listener.getsockname()[1], flush=True)
        yield


class Guard:
    """A bearer token, where MANAGER_TOKEN is set."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and TOKEN and Request(scope).headers.get("authorization") != f"Bearer {TOKEN}":
            await JSONResponse({"detail": "Unauthorized"}, status_code=401)(scope, receive, send)
            return
        await self.app(scope, receive, send)


routes = [
    Route("/mcpapi/servers", servers),
    Route("/mcpapi/tools", all_tools),
    Route("/mcpapi/server/{server}/tools", server_tools),
    Route("/mcpapi/tool/{tool}", call, methods=["POST"]),
]
CONFIG = json.loads(Path(sys.argv[1]).read_text())
listener = socket.create_server(("127.0.0.1", 0))

if __name__ == "__main__":
    app = Guard(Starlette(routes=routes, lifespan=lifespan))
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
