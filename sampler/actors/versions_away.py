"""Pinned versions of weights that no engine serves."""

import time

from sampler.core.tenant import TenantState

AWAY_SHOWN_S = 60.0  # after the last episode that missed a version: its slot is claimed again sooner


class UnavailableVersions(TenantState):
    """Versions that no engine serves, and that actors of this process's episodes are pinned to."""

    def __init__(self) -> None:
        self._missed: dict[tuple[str, int], tuple[float, float, str]] = {}  # first and last time, and what to do

    def missed(self, policy: str, version: int, why: str) -> None:
        now = time.monotonic()
        first, *_ = self._missed.get((policy, version), (now,))
        self._missed[policy, version] = (first, now, why)

    def note(self, policy: str, version: int) -> None:
        self._missed.pop((policy, version), None)

    def alarms(self) -> list[str]:
        now = time.monotonic()
        self._missed = {key: missed for key, missed in self._missed.items() if now - missed[1] < AWAY_SHOWN_S}
        return [
            f"{why}; its slots wait for {now - first:.0f} s, and no failure is counted"
            for _, (first, _, why) in sorted(self._missed.items())
        ]
