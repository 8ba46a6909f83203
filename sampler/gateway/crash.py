"""Whose act it was that an agent failed: the model's, which is scored, or the machine's, which is played again.

    a score was posted, and nothing was requested since            it counts, whatever the agent did then
    agent_crash: retry, or no reply of the model came              infrastructure
    agent_crash: score                                             scored
    auto: the last request was answered, none is without a reply,
          and nothing outside of the agent ended it                the model's act: its reply is what the agent failed on

A bug of the agent's own that shows after a reply looks the same: `ModelActs` counts, and says so when there are many.
"""

import asyncio
import errno
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from sampler.core.errors import AgentCrashed
from sampler.gateway.exchange import GatewayError, RetryRequest
from shared.processes.out_of_memory import out_of_memory_kills

AgentCrashRule = Literal["auto", "retry", "score"]
ACT = "agent_crash"
# What a person, a supervisor or a machine that shuts down sends.
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SHELL = 128  # a shell's status of a program that a signal ended: this, and the signal
_MACHINE_FAILED = (
    *(errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EIO),
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH),
)


class RequestFates:
    """Of one attempt. `unanswered`: why its newest request without a reply has none; a later request that has one clears it.
    `is_score_final`: a score was posted, and nothing requested since."""

    def __init__(self) -> None:
        self.unanswered, self.replies = "", 0
        self.is_score_final = self._is_over = False
        self._requests = self._unanswered_at = 0  # numbers of requests

    @contextmanager
    def request(self) -> Iterator[None]:
        self._requests += 1
        number, self.is_score_final = self._requests, False
        try:
            yield
        except (GatewayError, asyncio.CancelledError) as error:
            if not isinstance(error, RetryRequest):
                self.refused(str(error) or "its client left it")
            raise
        self.answered(number)

    def answered(self, number: int = 1) -> None:
        """Without a number: of an attempt that is continued from its documents, whose turns come in their order."""
        self.replies += 1
        if number > self._unanswered_at:
            self.unanswered = ""

    def refused(self, why: str) -> None:
        """A request got no reply; one that was no request for a reply counts, too. Not after the attempt's end."""
        if not self._is_over:
            self.unanswered, self._unanswered_at = why, self._requests

    def end(self, running: int) -> None:
        if running:
            self.refused(f"{running} requests were running")
        self._is_over = True


def is_cancelled() -> bool:
    """The caller itself, and not only what it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the attempt when its agent has failed. `unanswered`: why its last request has no reply, or empty."""

    replies: int
    unanswered: str
    posted: float | None  # the score, if nothing was requested since


def scored_because(rule: AgentCrashRule, evidence: Evidence, crash: AgentCrashed) -> str | None:
    """Why the attempt is scored, in words; None: it is an infrastructure failure."""
    if evidence.posted is not None:
        return f"the agent had posted the score {evidence.posted:g}, and requested nothing since"
    if rule == "retry" or not evidence.replies:
        return None
    if rule == "score":
        return f"agent_crash is score, and the agent had {evidence.replies} replies of the model"
    if evidence.unanswered or crash.outside:
        return None
    return f"the agent failed after reply {evidence.replies} of the model, no request failed, and nothing else ended it"


def outside_cause(exc: BaseException) -> str:
    """What an exception of an agent's function says of the machine or the network; empty: nothing."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, MemoryError | TimeoutError | ConnectionError):
            return type(seen).__name__
        if isinstance(seen, OSError) and seen.errno in _MACHINE_FAILED:
            return str(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return ""


# At the beginning of a line, where an error's type stands: what comes behind it may be the model's text.
_MACHINE_WORDS = re.compile(
    r"^(?:[\w.]*(?:Timeout|TimedOut|Connect)\w*(?:Error|Exception)|[\w.]*MemoryError|(?:OS|BlockingIO)Error: \[Errno \d+\]"
    r"|(?:\w*Error: )?(?:connect )?E(?:CONNREFUSED|CONNRESET|TIMEDOUT|NOMEM|NOSPC|MFILE))\b",
    re.MULTILINE,
)


class MachineWatch:
    """Whether the kernel ended processes for lack of memory while a command ran. Linux counts them; elsewhere: not known."""

    def __init__(self) -> None:
        self._before = out_of_memory_kills()

    def outside(self, status: int, output: str) -> str:
        """What outside of the command may have ended it with this status and these last words; empty: nothing."""
        number = -status if status < 0 else status - _SHELL
        words = _MACHINE_WORDS.search(output)
        if words is not None:
            return words[0]
        if number in _STOPS:
            return f"signal {signal.Signals(number).name}, which may come from outside"
        if number != signal.SIGKILL:
            return ""
        now = out_of_memory_kills()
        if now is None or self._before is None:
            return "signal SIGKILL, which may come from outside"
        return "" if now == self._before else "signal SIGKILL, while the machine lacked memory"
