"""One connection with a tool server, as the sampler and MCP-Docker both open it: over stdio, HTTP+SSE or streamable HTTP.

    servers (mcpServers JSON) ──▶ transports ──┬─▶ stdio                    a child process
                                               └─▶ busy, http_bodies, auth   HTTP

Alone in shared/ it imports MCP's SDK.
"""
