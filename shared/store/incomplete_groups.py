"""Groups of which only some records are in the trainer's stream: their settler was killed between two writes, or is not done.

    incomplete ─unchanged for `UNCHANGED_S`─▶ passed over ─`REREAD_S` later─▶ read again

A look at the stream that read all of them each time would cost as much as they have records. One that passes over them costs one
index key for each. Another settler completes such a group once the lease of the first has ended.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

UNCHANGED_S = 2.0  # a settler writes a group's records in one command
REREAD_S = 10.0
MOST_PASSED_OVER = 1_000  # a query names each


@dataclass(slots=True)
class _Incomplete:
    records: int
    since: float  # that it has so many
    read_at: float


class IncompleteGroups:
    """Of one policy, by `seq`, as this process has read them."""

    def __init__(self) -> None:
        self._known: dict[int, _Incomplete] = {}

    def passed_over(self) -> list[int]:
        """Those that need not be read now: at most `MOST_PASSED_OVER`."""
        now = time.monotonic()
        found = [
            seq
            for seq, one in self._known.items()
            if one.read_at - one.since >= UNCHANGED_S and now - one.read_at < REREAD_S
        ]
        return found[:MOST_PASSED_OVER]

    def note(self, read: Mapping[int, int], passed_over: list[int]) -> None:
        """`read`: records of each group that was incomplete. What was neither read nor passed over is forgotten."""
        now = time.monotonic()
        known = {seq: self._known[seq] for seq in passed_over}
        for seq, records in read.items():
            before = self._known.get(seq)
            same = before is not None and before.records == records
            known[seq] = _Incomplete(records, before.since if same and before is not None else now, now)
        self._known = known
