"""What HTTP asks of the gateway: MCP at either revision, the older protocol, health and figures."""
