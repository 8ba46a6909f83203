"""Building blocks of the service's loops."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shared.store.signals import LONGEST_S, Looks


async def every(work: Callable[[], Awaitable[None]], period_s: float) -> None:
    """Run `work` repeatedly, first after one period."""
    while True:
        await asyncio.sleep(period_s)
        await work()


async def at_signals(
    looks: Looks,
    work: Callable[[], Awaitable[None]],
    soon: Callable[[], bool] = lambda: False,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run `work` repeatedly, first after one pause. While `soon` pauses stay as short as they may be; `until` ends a pause."""
    while True:
        await looks.pause(at_most_s=looks.gap_s if soon() else LONGEST_S, until=until)
        await work()


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them ends, and cancel the others. Raises what the first raises."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
