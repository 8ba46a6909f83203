"""Tool lists by server, shared by the episodes of a process, so that not each one asks again.

For servers whose list does not depend on the session. A list is forgotten after `max_age_s` (0: at once), and when a
session's server says that it has changed: episodes that start later see the new one.
"""

import logging
import time

from sampler.tools.offered import OfferedTool, ToolConnection

log = logging.getLogger(__name__)

_MAX_LISTINGS = 3


class ToolCatalog:
    def __init__(self, max_age_s: float = 300.0) -> None:
        self._max_age_s = max_age_s
        self._lists: dict[tuple[object, ...], tuple[float, list[OfferedTool]]] = {}

    async def tools_of(self, connection: ToolConnection) -> list[OfferedTool]:
        """From memory, or from the server. Raises ToolFailure."""
        key = connection.server.key
        known = self._lists.get(key)
        if known and time.monotonic() - known[0] < self._max_age_s:
            return known[1]
        for _ in range(_MAX_LISTINGS):  # a server may register tools just after the handshake, and say so
            changes = connection.num_list_changes
            tools = await connection.list_tools()
            if connection.num_list_changes == changes:
                break
        self._lists[key] = (time.monotonic(), tools)
        return tools

    def forget(self, connection: ToolConnection) -> None:
        """The next episode asks again."""
        if self._lists.pop(connection.server.key, None) is not None:
            log.info("tool list changed server=%s", connection.server.name)
