"""Building blocks of the service's loops."""

import asyncio
from collections.abc import Awaitable, Callable


async def every(work: Callable[[], Awaitable[None]], period_s: float) -> None:
    """Run `work` repeatedly, first after one period."""
    while True:
        await asyncio.sleep(period_s)
        await work()


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
