"""A tool server over stdio. The tools are `bundled`'s, the protocol is `protocol`'s, answering is `connection`'s.

Calls run at the same time (`calls`). If all tools are quick, one follows the other, and asyncio is not loaded.
"""

import os
import sys
from types import ModuleType

from sampler.mcp_docker.tools.arguments import ToolArguments, argument
from sampler.mcp_docker.tools.bundled import BundledServer, BundledTool, ToolRefusal, server_of
from sampler.mcp_docker.tools.connection import BundledConnection

__all__ = ["BundledServer", "BundledTool", "ToolArguments", "ToolRefusal", "argument", "run", "run_module", "server_of"]

_PIECE_BYTES = 64 * 1024


def run(server: BundledServer, stdin: int = 0, stdout: int = 1) -> None:
    """Serve until stdin ends."""
    if all(tool.quick for tool in server.tools.values()):
        _answer_in_turn(server, stdin, stdout)
        return
    from sampler.mcp_docker.tools.calls import serve  # which loads asyncio

    serve(server, stdin, stdout)


def run_module(module: ModuleType) -> None:
    """As the command line `-m MODULE` does, whose arguments `sys.argv` has."""
    run(module.tool_server(sys.argv[1:]))


def _answer_in_turn(server: BundledServer, stdin: int, stdout: int) -> None:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(stdout, data) :]

    connection = BundledConnection(server, write)
    try:
        while piece := os.read(stdin, _PIECE_BYTES):
            connection.data_received(piece)
    except BrokenPipeError:  # the client reads no more
        return
