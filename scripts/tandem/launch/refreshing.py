"""Keeps the display's figures up to date: those of the database after signals, those of files and children every two seconds."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from shared.store import Store
from shared.store.poll_timer import PollTimer
from shared.store.signals import Signal
from tandem.launch.children import Children
from tandem.launch.disk_forecast import DiskForecast
from tandem.launch.display import Display
from tandem.launch.figures import StepMetrics, take_snapshot

SNAPSHOT_S = 2.0


@asynccontextmanager
async def refreshed(
    display: Display, children: Children, metrics: Mapping[str, StepMetrics], store: Store, folder: Path
) -> AsyncIterator[None]:
    """Refresh the figures within this context. `metrics`: by policy. `folder`: of the run."""
    task = asyncio.create_task(_refresh(display, children, metrics, store, DiskForecast(folder)), name="refresh")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _refresh(
    display: Display, children: Children, metrics: Mapping[str, StepMetrics], store: Store, disk: DiskForecast
) -> None:
    timer = PollTimer(store.signals, tuple(Signal), SNAPSHOT_S)

    def has_changed() -> bool:
        steps = [of_policy.last_step for of_policy in metrics.values()]
        for of_policy in metrics.values():
            of_policy.read()
        return children.has_losses or steps != [of_policy.last_step for of_policy in metrics.values()]

    while True:
        display.snapshot = await take_snapshot(store, list(metrics))
        for child in children.losses():
            display.note(f"the run continues without {child.crash_report()}")
        if disk.is_due():
            step = max((of_policy.last_step for of_policy in metrics.values()), default=0)
            max_steps = max(display.snapshot.max_steps.values(), default=0)
            if (warning := await asyncio.to_thread(disk.observe, step, max_steps)) is not None:
                display.note(warning)
        await timer.pause(until=has_changed)
