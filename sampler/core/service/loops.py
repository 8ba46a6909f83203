"""Building blocks of the service's loops."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shared.store.poll_timer import LONGEST_S, PollTimer


async def every(work: Callable[[], Awaitable[None]], period_s: float) -> None:
    """Run `work` repeatedly, first after one period."""
    while True:
        await asyncio.sleep(period_s)
        await work()


async def poll(
    timer: PollTimer,
    work: Callable[[], Awaitable[None]],
    longest_s: Callable[[], float] = lambda: LONGEST_S,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Run `work` repeatedly, first after one pause. `longest_s` limits each pause, `until` ends it."""
    while True:
        await timer.pause(longest_s=longest_s(), until=until)
        await work()


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until one of `works` ends, and cancel the others. Raises the exception of the one that ended."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()
