"""MCP-Docker: the servers of an mcpServers JSON behind one streamable-HTTP endpoint, with tool processes of its own per session.

    client ──POST /mcp──▶ requests ─▶ sessions ─▶ links ─▶ tool process (`shared.sandbox`; bundled `tools` may be `shared.forks`)
                                         │          └────▶ remote MCP server (`shared.mcp`)
                                         └─ new session ─▶ starting: a set with one link per server

Rooms, from the top: requests, sessions, starting, links, tools. None imports one above it, and all import shared/ alone.

`python -m sampler.mcp_docker --help`; guide: `docs/bring/mcp_docker.md`.
"""
