"""The end of processes that are no children of this one."""

import time
from collections.abc import Sequence

from tandem.launch.processes import start_time


def assert_end(pids: Sequence[int]) -> None:
    """Each has ended, or does so within 60 s: one that was killed runs until the kernel has a processor for it."""
    end = time.monotonic() + 60
    while alive := [pid for pid in pids if start_time(pid) is not None]:
        assert time.monotonic() < end, f"{alive} still run"
        time.sleep(0.02)  # the kernel notifies parents alone of an end
