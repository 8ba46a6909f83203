"""What the loops of the service are made of."""

import asyncio
from collections.abc import Awaitable, Callable


async def every(work: Callable[[], Awaitable[None]], period_s: float) -> None:
    """Again and again, first after a period."""
    while True:
        await asyncio.sleep(period_s)
        await work()


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Until it is set, or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
