"""What a task is played by: MCP tools, a sampler written for AgentRL, the continuation of a fork."""
