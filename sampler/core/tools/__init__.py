"""Tools of an episode.

shared.mcp: servers ──▶ transports ──▶ connection (MCP) ┐
                   └──────────────────▶ manager (mcpapi) ┴─▶ link ──▶ session ──▶ results ──▶ text for the model
             catalog (lists), traffic (who may open; circuit), per process         names (what it may call)   tokens (bounds)
"""

from sampler.core.tools.catalog import ToolCatalog
from sampler.core.tools.limits import ToolLimits
from sampler.core.tools.results import ToolResult
from sampler.core.tools.session import ToolSession
from sampler.core.tools.tokens import TokenOffsets
from sampler.core.tools.traffic import Traffic
from shared.mcp.servers import ToolServer, parse_servers

__all__ = [
    "TokenOffsets",
    "ToolCatalog",
    "ToolLimits",
    "ToolResult",
    "ToolServer",
    "ToolSession",
    "Traffic",
    "parse_servers",
]
