"""What becomes of an episode whose tool server's own process ended by one of the episode's calls: `kill -9 $PPID`, all memory.

Each episode has processes of its own, so a call in progress is the likely cause of their end, and the model is told what it did:
otherwise it could take back any episode that goes badly. A new process is started, at most `max_restarts` times.

Not so if other episodes' processes of the server ended at about the same time: then the machine is the likely cause.
"""

import asyncio
import re
import time
from collections import deque

from mcp_types import CallToolResult, TextContent

SERVER_GONE = -32500  # of MCP-Docker (`sampler/mcp_docker/links/messages.py`)
_HOW = re.compile(r"its process (?:was ended by signal \d+|ended with status \d+|exceeded its limit [a-z_]+: [^;\n]+)")
TOGETHER_S = 1.0  # processes that end within it have one cause
TOGETHER = 3  # so many of them at least…
TOGETHER_SHARE = 0.5  # …and this share of those that are open


class Ends:
    """Of one server's processes, over all episodes of this sampler."""

    def __init__(self) -> None:
        self.open = 0
        self._at: deque[float] = deque(maxlen=1000)

    async def is_single(self) -> bool:
        """A process has just ended by itself. Whether it is the only one, or one of few."""
        now = time.monotonic()
        self._at.append(now)
        before = self.open
        await asyncio.sleep(TOGETHER_S)  # the others' ends are noticed
        together = sum(abs(at - now) <= TOGETHER_S for at in self._at)
        return together < TOGETHER or together < TOGETHER_SHARE * before


def own_end_text(code: int, error: str) -> str:
    """How a session's own process ended, as MCP-Docker's error says it; empty: it does not."""
    match = _HOW.search(error) if code == SERVER_GONE else None
    return "" if match is None else match[0]


def answer_of(how: str, *, in_call: bool, is_over: bool, times: int) -> CallToolResult:
    """For the model. `in_call`: during a call, and not between two."""
    what = "Your call ended the tool's process" if in_call else "The tool's process has ended since your last call"
    then = (
        f"It has ended {times} times in this episode, and is not started again."
        if is_over
        else "Its state is lost; a new process was started."
    )
    return CallToolResult(
        content=[TextContent(type="text", text=f"{what}: {how.removeprefix('its process ')}. {then}")], is_error=True
    )
