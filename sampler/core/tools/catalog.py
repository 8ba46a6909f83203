"""Tool lists by server, shared by the episodes of a process, so that each list is requested once.

For servers whose list does not depend on the session. A list expires after `max_age_s` (0: at once), and when a session's
server reports a change: later episodes see the new list. All tools ever listed are remembered: a denied tool that its server
withdrew is not a spelling mistake.
"""

import logging
import time

from sampler.core.tools.names import log_useless_settings
from sampler.core.tools.offered import OfferedTool, ToolConnection

log = logging.getLogger(__name__)

_MAX_LISTINGS = 3
_MAX_REMEMBERED = 10_000


class ToolCatalog:
    def __init__(self, max_age_s: float = 300.0) -> None:
        self._max_age_s = max_age_s
        self._lists: dict[tuple[object, ...], tuple[float, list[OfferedTool]]] = {}
        self.ever_listed: set[tuple[str, str]] = set()

    async def tools_of(self, connection: ToolConnection) -> list[OfferedTool]:
        """The cached list, or the server's. Raises ToolFailure."""
        key = connection.server.key
        known = self._lists.get(key)
        if known and time.monotonic() - known[0] < self._max_age_s:
            return known[1]
        for _ in range(_MAX_LISTINGS):  # a server may register tools just after the handshake, and report the change
            changes = connection.num_list_changes
            tools = await connection.list_tools()
            if connection.num_list_changes == changes:
                break
        self._lists[key] = (time.monotonic(), tools)
        offered = [tool.identity for tool in tools]
        self.ever_listed.update(offered[: _MAX_REMEMBERED - len(self.ever_listed)])
        server = connection.server
        for name, entries in (
            ("tool_timeouts_s", server.tool_timeouts_s),
            ("idempotent_tools", server.idempotent_tools),
        ):
            log_useless_settings(name, entries, server.name, offered)
        return tools

    def forget(self, connection: ToolConnection) -> None:
        """Drop the list; the next episode requests it again."""
        if self._lists.pop(connection.server.key, None) is not None:
            log.info("tool list changed server=%s", connection.server.name)
