"""A real MCP server over stdio with a shell: what a tool can do to its machine."""

import subprocess

from mcp.server import MCPServer

server = MCPServer("shell", log_level="WARNING")


@server.tool()
def sh(command: str) -> str:
    """Run it; its output, errors included."""
    ended = subprocess.run(command, shell=True, text=True, errors="replace", capture_output=True, check=False)
    return ended.stdout + ended.stderr


server.run()
