import asyncio

import pytest

from sampler.core.episode.clock import EpisodeClock


async def test_what_is_stopped_does_not_count() -> None:
    clock = EpisodeClock()
    async with clock.running(2.0):
        async with clock.stopped():
            await asyncio.sleep(2.5)  # more than the block may take
        await asyncio.sleep(0)


async def test_what_is_not_stopped_counts_before_and_after() -> None:
    async def block(clock: EpisodeClock) -> None:
        async with clock.running(0.3):
            await asyncio.sleep(0.2)
            async with clock.stopped():
                await asyncio.sleep(0.2)
            await asyncio.sleep(60)  # until the limit, or until it is cancelled

    with pytest.raises(TimeoutError):
        await block(EpisodeClock())


async def test_a_block_that_goes_on_after_a_time_out_changes_nothing() -> None:
    clock, let_end = EpisodeClock(), asyncio.Event()

    async def copying() -> None:
        async with clock.stopped():
            await let_end.wait()

    running = asyncio.create_task(_times_out(clock))
    await asyncio.sleep(0)
    copied = asyncio.create_task(copying())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    let_end.set()
    await copied
    async with clock.stopped():  # without a limit there is nothing to stop
        pass


async def _times_out(clock: EpisodeClock) -> None:
    async with clock.running(60):
        await asyncio.sleep(60)  # until the limit, or until it is cancelled
