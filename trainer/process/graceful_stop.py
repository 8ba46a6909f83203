"""Ends training between two steps after a signal."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from shared.processes.signals import ending_signals

log = logging.getLogger(__name__)

SAME_S = 1.0  # signals within this time count as one: a terminal's Ctrl-C also reaches the launcher, which forwards it


class Stoppable(Protocol):
    """Work that checks `stopping` before each step."""

    stopping: bool


@contextmanager
def stops_at_signals(work: Stoppable) -> Iterator[None]:
    """SIGTERM and SIGINT end the work after the current step; a second one ends it at once."""
    received = -math.inf

    def stop(signum: int, _: FrameType | None) -> None:
        nonlocal received
        if work.stopping and time.monotonic() - received > SAME_S:
            raise KeyboardInterrupt
        if not work.stopping:
            log.info("received %s: finishing the step in hand", signal.Signals(signum).name)
            received = time.monotonic()
        work.stopping = True

    before = {s: signal.signal(s, stop) for s in ending_signals()}
    try:
        yield
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
