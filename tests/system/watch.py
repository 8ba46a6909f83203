"""What the checks of whole clusters (`two_nodes`, `slurm_run`) share: they report with the time since their start, wait until the
database shows what they expect, and end with the audit.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from shared.documents.states import RecordStatus
from shared.store import Store
from tandem.audit.run import audit

PAUSE_S = 0.3


class CheckFailed(Exception):
    """The check did not hold; the message says what was found."""


def nothing_ended() -> list[str]:
    return []


class Watch:
    """`clues`: the end of a failure's message. `ended`: parts that must run and do not, so that waiting is useless."""

    def __init__(
        self,
        store: Store,
        clues: Callable[[], str],
        patience_s: float,
        ended: Callable[[], list[str]] = nothing_ended,
    ) -> None:
        self.store = store
        self._clues = clues
        self._ended = ended
        self._patience_s = patience_s
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._started:7.1f} s  {text}\n")
        sys.stdout.flush()

    async def until(self, what: str, ask: Callable[[], Awaitable[bool]]) -> None:
        """Raises CheckFailed."""
        deadline = time.monotonic() + self._patience_s
        while not await ask():
            ended = self._ended()
            if time.monotonic() > deadline or (ended and not await ask()):
                raise CheckFailed(f"{what} never came (ended: {ended})\n{self._clues()}")
            await asyncio.sleep(PAUSE_S)

    async def step(self) -> int:
        newest = await self.store.versions.newest("main")
        return newest.step if newest is not None else 0

    async def until_step(self, step: int) -> None:
        """`step` counts from 1: version 0 is the initial model."""

        async def reached() -> bool:
            return await self.step() >= step

        await self.until(f"step {step}", reached)
        self.say(f"step {step} is published")

    async def episodes(self) -> Counter[str]:
        """Scored episodes by machine."""
        scored = {"status": {"$in": [RecordStatus.SCORED.value, RecordStatus.READY.value]}}
        found: Counter[str] = Counter()
        async for record in self.store.database["records"].find(scored, {"worker": 1}):
            found[record["worker"].split(":")[1]] += 1
        return found

    async def audit(self) -> None:
        """Raises CheckFailed."""
        report = await audit(self.store, running=True)
        statuses = Counter([r["status"] async for r in self.store.database["records"].find({}, {"status": 1})])
        examined = sum(result.examined for result in report.results.values())
        self.say(f"records {dict(statuses)}; audit: {examined} things examined, ok {report.ok}")
        if not report.ok:
            raise CheckFailed(str(report))
