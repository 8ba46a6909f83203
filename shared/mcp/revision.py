"""Revisions of MCP, and how a request names the episode that it belongs to.

    handshake (to 2025-11-25)   `initialize`; over HTTP the server keeps state by session id
    2026-07-28                  `server/discover`; no sessions: state is kept by the episode id in every call

Every HTTP request carries the episode id as the header `Tandem-Episode-Id`, and every tool call at 2026-07-28 as
`_meta["tandem/episode-id"]`. It stays the same when a connection is replaced.
"""

from typing import Literal

Revision = Literal["auto", "handshake", "2026-07-28"]
EPISODE_HEADER = "Tandem-Episode-Id"
EPISODE_KEY = "tandem/episode-id"
HEADER_KEY = "x-mcp-header"  # of a tool's parameter that is sent as a header too
