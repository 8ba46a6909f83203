"""MCP-Docker: the servers of an mcpServers JSON behind one streamable-HTTP endpoint, with tool processes of its own per session.

    client ──POST /mcp──▶ app ─▶ endpoint ─▶ sessions ─▶ GatewaySession ─▶ routing ─▶ ServerLink ─▶ tool process (sandbox)
                                                │                                        └─▶ remote MCP server
                                                └─ new session ─▶ pool ─▶ ToolSet: one link per server

`python -m sampler.mcp_docker --help`; guide: `docs/bring/mcp_docker.md`.
"""
