"""Tools that come with MCP-Docker: each module is a stdio MCP server, `python -m sampler.mcp_docker.tools.NAME`.

Each has `tool_server(arguments)`; `serving.run` serves it on given streams, so that a process that has the module loaded
can be forked.
"""
