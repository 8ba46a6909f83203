"""Waiting for conditions with a time limit, and for the signals that end a run."""

import asyncio
import math
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.errors import TandemError
from shared.processes.signals import not_ignored
from shared.processes.waits import Wait, waiting
from shared.store.poll_timer import PollTimer
from tandem.launch.settings import LaunchConfig

ASK_S = 0.2


async def until(
    config: LaunchConfig,
    what: str,
    why: str,
    ask: Callable[[], Any],
    limit_s: float | None = None,
    timer: PollTimer | None = None,
) -> Any:
    """Poll `ask` until it returns neither None nor False; the display says that the launcher waits for `what`, since `why`.
    `timer`: of a query of the database; None: every `ASK_S`.

    Raises TandemError after `limit_s`; None: `start_timeout_s`.
    """
    limit_s = config.start_timeout_s if limit_s is None else limit_s
    limit = f", for {limit_s:g} s at most (start_timeout_s)" if math.isfinite(limit_s) else ""
    deadline = time.monotonic() + limit_s
    with waiting(Wait(what, why, f"it is there{limit}")):
        while True:
            answer = ask()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise TandemError(
                    f"timed out after {limit_s:g} s waiting for {what}: {why}; see {config.log_folder}/{config.run}_*.log, "
                    "or allow more with --start_timeout_s"
                )
            await (
                asyncio.sleep(ASK_S) if timer is None else timer.pause(longest_s=max(0.0, deadline - time.monotonic()))
            )


@contextmanager
def signals_set(event: asyncio.Event, again: Callable[[], None]) -> Iterator[list[signal.Signals]]:
    """Ctrl-C, SIGTERM and a closed terminal set `event`; Ctrl-C after any of them calls `again`. Yields what was received.

    A scheduler sends SIGTERM more than once (Slurm to the step, srun to its tasks) and kills later by itself.
    """
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def receive(number: signal.Signals) -> None:
        received.append(number)
        if event.is_set() and number == signal.SIGINT:
            again()
        event.set()

    signals = not_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, receive, number)
    try:
        yield received
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
