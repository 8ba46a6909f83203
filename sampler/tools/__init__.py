"""Tools over MCP: which servers (`servers`), one session per episode (`session`), what the model reads (`results`)."""

from sampler.tools.results import ToolResult
from sampler.tools.servers import ToolServer, parse_servers
from sampler.tools.session import ToolCatalog, ToolLimits, ToolSession

__all__ = ["ToolCatalog", "ToolLimits", "ToolResult", "ToolServer", "ToolSession", "parse_servers"]
